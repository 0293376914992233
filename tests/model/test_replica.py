import random
import threading

import numpy as np
import pytest
import torch
from tasks import a_task, numbers, perceptron, samples
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute

from paceline.context import Batch
from paceline.data.samples import Samples
from paceline.errors import Cancelled, RunError
from paceline.model.engines.shape_model import ShapeModel
from paceline.model.evaluation import put_together
from paceline.model.layout import BUCKET_BYTES
from paceline.model.replica import Replica

DATA = Samples(samples())


def a_batch(count=8, total=None, step=0):
    return Batch(step, 0, count, total or count, lambda _: np.arange(count))


def a_replica(model=perceptron, **changes):
    task = a_task(model=model, **changes)
    return Replica.of(task, task.build_model(0))


def gradient_of_torch(replica, batch):
    """The mean gradient by plain autograd, times the batch's weight."""
    model = replica.task.build_model(0)
    *inputs, target = DATA.fetch(batch.indices)
    loss = replica.task.loss(model(*inputs), target)
    loss.backward()
    flat = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in model.parameters()]
    return torch.cat(flat) * batch.weight, loss.item()


class Mixed(nn.Module):
    """A layer that is not used, one that is used twice, and one that is recomputed in backward."""

    def __init__(self):
        super().__init__()
        self.unused, self.twice, self.again = nn.Linear(3, 3), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = self.twice(torch.tanh(self.twice(x)))
        return recompute(self.again, x, use_reentrant=True)


class TwoBuckets(nn.Module):
    def __init__(self):
        super().__init__()
        self.large = nn.Parameter(torch.full((BUCKET_BYTES // 8,), 0.1, dtype=torch.float64))
        self.small = nn.Parameter(torch.full((2,), 0.1, dtype=torch.float64))

    def forward(self, x):
        return x.sum(1, keepdim=True) * self.large[:2] + self.small


@pytest.mark.parametrize("model", [perceptron, lambda: Mixed().double()], ids=["perceptron", "mixed"])
@pytest.mark.parametrize(("count", "total"), [(8, 8), (3, 8), (1, 100)])
def test_the_gradient_is_the_mean_over_the_slice_times_its_weight(model, count, total):
    replica, batch = a_replica(model), a_batch(count, total)
    replica.gradient.fill_(1e9)  # what was there before does not count
    loss = replica.compute(batch, DATA, weight=batch.weight)
    expected, expected_loss = gradient_of_torch(replica, batch)
    torch.testing.assert_close(replica.gradient, expected, rtol=0, atol=1e-15)
    assert loss == pytest.approx(expected_loss, abs=1e-15)


def test_an_empty_slice_has_a_gradient_of_zero():
    replica = a_replica()
    replica.gradient.fill_(1e9)
    ready = []
    assert replica.compute(a_batch(0, 8), DATA, ready.append) == 0
    assert not replica.gradient.any()
    assert ready == [0]


def test_gradients_of_sparse_embeddings_are_made_dense():
    replica = a_replica(lambda: nn.Sequential(nn.Embedding(5, 2, sparse=True).double(), nn.Flatten(0, 1)))
    data = Samples((torch.tensor([[1], [3]]), numbers(2, 2)))
    replica.compute(a_batch(2), data)
    rows = replica.gradient.view(5, 2).abs().sum(1)
    assert (rows > 0).tolist() == [False, True, False, True, False]


def test_the_modules_parameters_are_views_of_the_flat_tensor():
    replica = a_replica()
    replica.parameters.fill_(3)
    assert all((p == 3).all() for p in replica.module.parameters())
    assert all(p.grad is None for p in replica.module.parameters())


def test_buckets_are_handed_over_last_first_each_when_it_is_filled():
    replica = a_replica(TwoBuckets)
    replica.gradient.fill_(-1)
    seen = []
    replica.compute(a_batch(), DATA, lambda number: seen.append((number, replica.bucket(number).clone())))
    assert [number for number, _ in seen] == list(replica.buckets.order()) == [1, 0]
    assert all(torch.equal(bucket, replica.bucket(number)) for number, bucket in seen)
    assert sum(replica.buckets.shares()) == pytest.approx(1)
    assert replica.buckets.shares()[0] == pytest.approx(2 / replica.layout.length)


class Root(nn.Module):
    """Its loss is finite, its gradient is not: the slope of a square root at zero is infinite."""

    def __init__(self):
        super().__init__()
        self.root = nn.Parameter(torch.zeros(BUCKET_BYTES // 8, dtype=torch.float64))
        self.offset = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        return self.root[:2].sqrt() + self.offset + 0 * x[:, :2]


def test_a_bucket_that_is_not_finite_is_not_handed_over():
    replica, ready = a_replica(Root), []
    loss = replica.compute(a_batch(), DATA, ready.append)
    assert np.isfinite(loss)
    assert ready == [1]
    assert replica.not_finite == "root"


def test_the_next_gradient_is_judged_by_itself():
    replica = a_replica(Root)
    replica.compute(a_batch(), DATA)
    replica.parameters.fill_(1)
    replica.compute(a_batch(), DATA)
    assert replica.not_finite is None


class Twice(nn.Module):
    """A layer that two recomputed parts share: backward brings its gradient in two pieces, the second spoilt."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        first = recompute(lambda x: (self.layer(x) * 0).abs().sqrt(), x.requires_grad_(), use_reentrant=True)
        return recompute(self.layer, first, use_reentrant=True)[:, :2]


def test_a_gradient_that_a_later_piece_spoils_is_not_finite():
    replica, ready = a_replica(lambda: Twice().double()), []
    replica.compute(a_batch(), DATA, ready.append)
    assert ready == [0], "the first piece was finite"
    assert replica.not_finite == "layer.bias"


def test_a_replica_can_be_placed_in_other_memory():
    replica, memory = a_replica(), torch.zeros(3, 37, dtype=torch.float64)
    memory[0].copy_(replica.parameters)
    expected, _ = gradient_of_torch(replica, a_batch())
    replica.place(parameters=memory[0], gradient=memory[2])
    replica.compute(a_batch(), DATA)
    torch.testing.assert_close(memory[2], expected, rtol=0, atol=1e-15)
    before = memory[0].clone()
    replica.apply()
    torch.testing.assert_close(memory[0], before - 0.1 * expected, rtol=0, atol=1e-15)
    assert not memory[1].any()


def test_a_replica_cannot_be_placed_after_its_first_update():
    replica = a_replica()
    replica.apply()
    with pytest.raises(RunError):
        replica.place(parameters=replica.parameters.clone())


def count_checkpoints(replica):
    calls = []
    replica.compute(a_batch(), DATA, checkpoint=lambda: calls.append(None))
    return len(calls)


def test_the_checkpoint_is_called_before_each_layer_and_after_each_gradient():
    assert count_checkpoints(a_replica()) == 3 + 4


@pytest.mark.parametrize("after", range(7))
def test_a_computation_abandoned_at_any_checkpoint_leaves_the_replica_usable(after):
    replica = a_replica()
    parameters = replica.parameters.clone()
    calls = []

    def abandon():
        calls.append(None)
        if len(calls) > after:
            raise Cancelled

    with pytest.raises(Cancelled):
        replica.compute(a_batch(), DATA, checkpoint=abandon)
    assert len(calls) == after + 1
    assert all(p.grad is None for p in replica.module.parameters())
    assert torch.equal(replica.parameters, parameters)
    replica.compute(a_batch(5), DATA)
    expected, _ = gradient_of_torch(replica, a_batch(5))
    torch.testing.assert_close(replica.gradient, expected, rtol=0, atol=1e-15)


def dropout():
    return nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 2)).double()


class Drawing(nn.Module):
    """A model that draws random numbers from numpy or Python, like models that skip layers at random."""

    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(4, 2).double(), draw

    def forward(self, inputs):
        return self.layer(inputs) * self.draw()


def gradient_with_chance(model, seed=0, rank=0, step=0):
    task = a_task(model=model)
    replica = Replica.of(task, task.build_model(0), seed=seed, rank=rank)
    replica.compute(a_batch(step=step), DATA)
    return replica.gradient


@pytest.mark.parametrize(
    "model",
    [dropout, lambda: Drawing(np.random.rand), lambda: Drawing(random.random)],
    ids=["torch", "numpy", "Python"],
)
def test_what_a_model_draws_is_set_by_seed_rank_and_step_whatever_came_before(model):
    first = gradient_with_chance(model)
    torch.rand(100), np.random.rand(100), random.random()
    assert torch.equal(gradient_with_chance(model), first)
    for other in ({"seed": 1}, {"rank": 1}, {"step": 1}):
        assert not torch.equal(gradient_with_chance(model, **other), first)


# Evaluation


def test_evaluation_sees_all_samples_in_order_in_evaluation_mode():
    inputs, targets = numbers(2500, 4), numbers(2500, 2, seed=1)
    seen = {}

    def metric(outputs, answers):
        seen.update(outputs=outputs, answers=answers)
        return 0.25

    replica = a_replica(dropout, test=(inputs, targets), metric=metric)
    model = replica.task.build_model(0).eval()
    assert replica.inspection.evaluate(Samples((inputs, targets))) == {"metric": 0.25}
    torch.testing.assert_close(seen["outputs"], model(inputs), rtol=0, atol=1e-14)
    assert torch.equal(seen["answers"], targets)
    assert not seen["outputs"].requires_grad
    assert replica.module.training


def frozen_norm():
    """Common fine-tuning: a trained layer stays in evaluation mode, so that its statistics do not change."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    model[1].eval()
    return model


def test_a_layer_that_the_user_put_into_evaluation_mode_stays_there():
    replica = a_replica(frozen_norm, test=samples(), metric=lambda outputs, targets: 0.0)
    replica.compute(a_batch(), DATA)
    replica.inspection.evaluate(DATA)
    replica.compute(a_batch(), DATA)
    assert replica.module.training
    assert not replica.module[1].training
    assert replica.inspection.state()["1.num_batches_tracked"] == 0


def test_a_model_given_in_evaluation_mode_is_trained_in_training_mode():
    replica = a_replica(lambda: dropout().eval())
    replica.compute(a_batch(), DATA)
    assert all(layer.training for layer in replica.module.modules())


def test_the_state_is_a_copy():
    replica = a_replica()
    state = replica.inspection.state()
    replica.parameters.fill_(5)
    assert list(state) == list(replica.module.state_dict())
    assert not any((tensor == 5).any() for tensor in state.values())


def test_a_replica_of_shapes_costs_no_memory_and_does_no_mathematics():
    task = a_task(model=lambda: nn.Linear(10**6, 10**6, device="meta"))
    replica = Replica.of_shapes(ShapeModel(task, task.build_model(0)))
    assert replica.parameters.is_meta
    assert replica.layout.length == 10**12 + 10**6
    assert replica.compute(a_batch(0), DATA) is None
    replica.apply()
    assert replica.inspection.state() == {}


def test_an_evaluation_draws_the_same_each_time_and_nothing_is_missed_afterwards():
    class Noisy(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs + torch.randn_like(inputs))

    task = a_task(model=lambda: Noisy(4, 2).double(), test=samples(20), metric="mse", test_batch_size=7)
    replica, test = Replica.of(task, task.build_model(0), seed=3), Samples(samples(20))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = replica.inspection.evaluate(test)
    assert torch.equal(torch.rand(3), expected)
    assert replica.inspection.evaluate(test) == first
    both = torch.cat([replica.inspection.evaluate_parts(test, numbers) for numbers in ([2], [0, 1])])
    assert put_together(task, both[[1, 2, 0]]) == first


class Meeting:
    """A gradient and an evaluation in two threads.

    Without a lock the gradient draws in the middle of the evaluation.
    """

    def __init__(self):
        self.computes, self.looks, self.has_drawn = threading.Event(), threading.Event(), threading.Event()

    def model(self):
        """Dropout that waits for the start of the evaluation during training.

        With a lock the evaluation waits for the gradient.
        """

        def forward(layer, inputs):
            if layer.training:
                self.computes.set()
                self.looks.wait(0.2)
            dropped = nn.functional.dropout(inputs @ layer.weight.T, 0.5, layer.training)
            self.has_drawn.set()
            return dropped

        return type("Dropping", (nn.Linear,), {"forward": forward})(4, 2, bias=False, dtype=torch.float64)

    def metric(self, outputs, _targets):
        self.has_drawn.clear()
        self.looks.set()
        self.has_drawn.wait(0.2)
        return outputs.sum().item()


def test_an_evaluation_in_another_thread_does_not_change_what_a_gradient_draws():
    meeting = Meeting()
    own, other = (a_replica(meeting.model, test=samples(), metric=meeting.metric) for _ in range(2))
    batch = a_batch(step=3)  # that of step 0 has the seed of the first test batch
    own.compute(batch, DATA)
    expected = own.gradient.clone()
    meeting.computes.clear()
    thread = threading.Thread(target=own.compute, args=(batch, DATA))
    thread.start()
    assert meeting.computes.wait(60)
    other.inspection.evaluate(Samples(samples()))
    thread.join()
    assert torch.equal(own.gradient, expected)
