"""No rank applies a gradient that is not finite. In every strategy the error names rank, step and parameter."""

import pytest
import torch
from conformance.cases import CUT, SPECS
from refusals import has, raised
from tasks import a_task, numbers, sgd, simulated
from torch import nn

import paceline as pl
from paceline.data.batches import GlobalBatches
from paceline.errors import GradientNotFiniteError, LossNotFiniteError
from paceline.strategies import parse

SAMPLES, BATCH, WORKERS, STEP, RANK = 40, 8, 3, 3, 1
BATCHES = GlobalBatches(SAMPLES, BATCH, seed=0)
UNLUCKY = int(BATCHES.slice(STEP, RANK, WORKERS).indices[0])
INPUTS = torch.cat([torch.arange(float(SAMPLES))[:, None], numbers(SAMPLES, 3)], dim=1).double()


class Spoil(torch.autograd.Function):
    """A layer that does not change values, but spoils the gradient of a batch with a certain sample."""

    @staticmethod
    def forward(ctx, values, unlucky, by):
        ctx.unlucky, ctx.by = unlucky, by
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by if ctx.unlucky else gradient, None, None


class Spoiling(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by
        self.before, self.after = nn.Linear(3, 5).double(), nn.Linear(5, 2).double()

    def forward(self, inputs):
        unlucky = bool((inputs[:, 0] == UNLUCKY).any())
        return self.after(Spoil.apply(torch.tanh(self.before(inputs[:, 1:])), unlucky, self.by))


def refuse(optimizer, *_):
    """A check before each update, on any rank."""
    pieces = [piece for group in optimizer.param_groups for piece in group["params"]]
    assert all(piece.grad.isfinite().all() for piece in pieces), "applied"


def watchful_sgd(params):
    optimizer = sgd(params)
    optimizer.register_step_pre_hook(refuse)
    return optimizer


def spoilt_task(by=float("nan"), **changes):
    given = {"model": lambda: Spoiling(by), "data": (INPUTS, numbers(SAMPLES, 2, seed=1))}
    return a_task(**(given | {"optimizer": watchful_sgd, "batch_size": BATCH} | changes))


def samples_of(spec, rank, step):
    """The samples of a rank in a step. A client has its own samples, and a single device has all."""
    strategy = parse(spec)
    if hasattr(strategy, "make_partition"):
        return strategy.make_partition().parts(range(SAMPLES), WORKERS)[rank]
    return BATCHES.slice(step, rank, 1 if spec == "single" else WORKERS).indices


def check_error(error, spec):
    assert UNLUCKY in samples_of(spec, error.rank, error.step)
    assert error.parameter == "before.bias"


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in CUT])
def test_a_gradient_that_is_not_finite_is_named_and_not_applied(spec):
    with pytest.raises(GradientNotFiniteError) as caught:
        pl.train(spoilt_task(), spec, simulated(WORKERS), steps=40)
    check_error(caught.value, spec)
    if not spec.startswith("fed"):  # a client sees all its samples in every round
        assert caught.value.step == STEP


class SpoilingLayer(nn.Module):
    def forward(self, inputs):
        return Spoil.apply(inputs, bool((inputs[:, 0] == UNLUCKY).any()), float("nan"))


@pytest.mark.parametrize("spec", [spec for spec in CUT if spec != "tensor"])  # this layer cannot be traced
def test_the_rank_that_holds_the_parameter_is_named_where_the_model_is_cut(spec):
    def model():
        return nn.Sequential(nn.Linear(4, 4), nn.Identity(), SpoilingLayer(), nn.Linear(4, 2)).double()

    def optimizer(params):
        return torch.optim.SGD(params, lr=0.0)

    def still():
        made = model()
        with torch.no_grad():
            made[0].weight.copy_(torch.eye(4))
            made[0].bias.zero_()
        return made

    task = spoilt_task(model=still, optimizer=optimizer)
    with pytest.raises(GradientNotFiniteError) as caught:
        pl.train(task, spec, simulated(2), steps=40)
    assert (caught.value.rank, caught.value.step, caught.value.parameter) == (0, STEP, "0.bias")


@pytest.mark.parametrize(
    "spec",
    [
        "all-reduce:algorithm=shared",
        "all-reduce:algorithm=ring,bucket_mb=0.0001",
        "sync:servers=2",
        "async",
        "hogwild",
        "decentralized:mode=async",
        "fedavg",
    ],
)
def test_processes_name_a_gradient_that_is_not_finite_too(spec):
    with pytest.raises(GradientNotFiniteError) as caught:
        pl.train(spoilt_task(), spec, pl.Local(workers=WORKERS), steps=1000)
    check_error(caught.value, spec)


@pytest.mark.parametrize("by", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_whatever_is_not_finite_counts_in_every_dtype(by, dtype):
    data = (INPUTS.to(dtype), numbers(SAMPLES, 2, seed=1, dtype=dtype))
    task = spoilt_task(model=lambda: Spoiling(by).to(dtype), data=data)
    with pytest.raises(GradientNotFiniteError):
        pl.train(task, "single", simulated(1), steps=5)


def test_a_loss_that_is_not_finite_is_told_before_its_gradient():
    def loss(outputs, targets):
        return nn.functional.mse_loss(outputs, targets) * torch.nan

    with pytest.raises(LossNotFiniteError):
        pl.train(a_task(loss=loss), "all-reduce:algorithm=ring,bucket_mb=0.0001", simulated(2), steps=5)


@pytest.mark.parametrize("spec", ["single", "local-sgd"])
def test_weights_that_the_last_update_makes_infinite_are_not_returned(spec):
    def optimizer(params):
        return torch.optim.SGD(params, lr=1e200)

    def loss(outputs, targets):
        return (outputs * 1e200).sum()

    with raised(pl.PacelineError, "2.bias"):
        pl.train(a_task(optimizer=optimizer, loss=loss), spec, simulated(2), steps=1)


@pytest.mark.parametrize(
    "spec", ["single", "all-reduce", "sync", "pipeline", "layers", "zero:stage=3", "tensor:size=2"]
)
def test_a_loss_of_ignored_targets_alone_is_named_as_the_cause(spec):
    ignored = torch.full((SAMPLES,), -100)
    model = lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()  # noqa: E731
    task = a_task(model=model, data=(INPUTS, ignored), loss=nn.CrossEntropyLoss(), batch_size=BATCH)
    with raised(LossNotFiniteError, cause=has("ignore_index", 100)) as got:
        pl.train(task, spec, simulated(2), steps=1)
    assert "learning rate" not in str(got.value)


def test_a_loss_that_is_not_finite_for_finite_outputs_is_at_fault_itself():
    task = a_task(loss=lambda outputs, target: (outputs - outputs).sum() / 0.0)
    with raised(LossNotFiniteError):
        pl.train(task, "single", simulated(1), steps=1)
