"""Models with parameters of several dtypes."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam

import paceline as pl
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model.replica import Replica
from paceline.task.calls import loss_of
from paceline.testing.reference import STEPS, train_plainly
from paceline.testing.tasks import make_task
from paceline.testing.worlds import WORLDS, simulated

OPTIMIZERS = {
    "momentum": lambda params: SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: Adam(params, lr=0.01, weight_decay=0.01),
    "adagrad": lambda params: Adagrad(params, lr=0.01, initial_accumulator_value=0.1),
}


class Mixed(nn.Module):
    """A narrow layer between two others, as in models that are trained in mixed precision."""

    def __init__(self, narrow, wide=torch.float32):
        super().__init__()
        self.narrow = narrow
        self.first, self.last = nn.Linear(4, 5, dtype=wide), nn.Linear(5, 2, dtype=wide)
        self.middle = nn.Linear(5, 5).to(narrow)

    def forward(self, x):
        return self.last(self.middle(self.first(x).to(self.narrow)).to(x.dtype).tanh())


class Complex(nn.Module):
    """A model with complex numbers after `before` real ones in the layout."""

    def __init__(self, before):
        super().__init__()
        self.before = nn.Parameter(torch.ones(before, dtype=torch.float64))
        self.first = nn.Linear(4, 5, dtype=torch.complex128)
        self.last = nn.Linear(5, 2, dtype=torch.float64)

    def forward(self, x):
        return self.last(self.first(x.to(torch.complex128) * self.before.mean()).abs())


def a_task(model, optimizer="adam", dtype=torch.float32):
    return dataclasses.replace(make_task(dtype=dtype, model=model), optimizer=OPTIMIZERS[optimizer])


def train_with_masters(task):
    """A plain PyTorch loop that trains a wide copy of every parameter. The model is rounded from it in each step."""
    model, samples = task.build_model(0), Samples(task.build_data())
    masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = task.optimizer(masters)
    batches = GlobalBatches(samples.length, task.batch_size, 0)
    for step in range(STEPS):
        model.zero_grad()
        loss_of(task, model, samples.fetch(batches.indices(step))).backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
    return torch.cat([p.detach().reshape(-1).float() for p in model.parameters()])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_narrow_layer_is_rounded_from_what_is_learned(optimizer):
    task = a_task(lambda: Mixed(torch.bfloat16), optimizer)
    run = pl.train(task, "single", simulated(1), steps=STEPS)
    assert run.model.middle.weight.dtype == torch.bfloat16
    assert torch.equal(run.parameters, train_with_masters(task))


def test_updates_too_small_for_a_narrow_layer_add_up():
    replica = Replica.of(task := a_task(lambda: Mixed(torch.bfloat16), "momentum"), task.build_model(0))
    replica.parameters.fill_(1.0)
    for _ in range(100):
        replica.parameters.add_(1e-4)  # a hundredth of what bfloat16 can tell apart at 1
    with replica.engine.store.bound(None):
        pass
    assert replica.module.middle.weight.unique().tolist() == [1.0078125]


@pytest.mark.parametrize(
    ("spec", "narrow"),
    [
        ("all-reduce", torch.bfloat16),
        ("all-reduce:algorithm=shared", torch.float16),
        ("sync:servers=2", torch.bfloat16),
        ("local-sgd:period=2", torch.float16),
    ],
)
def test_mixed_dtypes_give_the_same_bits_in_every_world(spec, narrow):
    task = a_task(lambda: Mixed(narrow))
    local, virtual = (pl.train(task, spec, world(2), steps=STEPS) for world in WORLDS.values())
    assert torch.equal(local.parameters, virtual.parameters)


def test_workers_learn_mixed_dtypes_as_one_does():
    """Gradients of a narrow layer are weighted and summed as wide numbers: only the narrow layer's own sums round."""
    task = a_task(lambda: Mixed(torch.float32, torch.float64), "momentum", torch.float64)
    plain = pl.train(task, "single", simulated(1), steps=STEPS).parameters
    torch.testing.assert_close(
        pl.train(task, "all-reduce", simulated(3), steps=STEPS).parameters, plain, rtol=0, atol=1e-6
    )


# At an odd place two numbers cannot be seen as a complex one: there the module has copies.
@pytest.mark.parametrize("before", [2, 3], ids=["even", "odd"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_complex_parameters_get_the_weights_of_a_plain_loop(optimizer, before):
    task = a_task(lambda: Complex(before), optimizer, torch.float64)
    expected, _ = train_plainly(task)
    for workers in (1, 3):
        run = pl.train(task, "all-reduce", simulated(workers), steps=STEPS)
        torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["all-reduce:algorithm=shared", "async", "fedavg"])
def test_complex_parameters_run_in_processes(spec):
    run = pl.train(
        a_task(lambda: Complex(3), dtype=torch.float64), spec, pl.Local(workers=1, threads=1), steps=STEPS
    )
    virtual = pl.train(a_task(lambda: Complex(3), dtype=torch.float64), spec, simulated(1), steps=STEPS)
    assert torch.equal(run.parameters, virtual.parameters)


def test_parameters_of_one_dtype_are_the_flat_tensor_itself():
    replica = Replica.of(task := make_task(), task.build_model(0))
    replica.parameters.fill_(3.0)
    assert all((parameter == 3.0).all() for parameter in replica.module.parameters())
