import warnings

import pytest
import torch
from tasks import a_task, numbers, simulated
from torch import nn

import paceline as pl
from paceline.data.batches import GlobalBatches
from paceline.model.engines.shape_model import ShapeModel
from paceline.model.layout import Layout
from paceline.model.optimizer import flat_groups
from paceline.model.optimizer.flat import FlatOptimizer, works_elementwise
from paceline.model.optimizer.saved_state import SavedOptimizerState, keep_updates
from paceline.model.replica import Replica

STEPS = 4
ELEMENTWISE = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.3),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01, t0=1),
}


class Lars(torch.optim.Optimizer):
    """An optimizer that needs whole layers: its rate is set by the norms of a parameter and of its gradient."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                rate = group["lr"] * p.norm() / (p.grad.norm() + 1e-9) if p.ndim > 1 else group["lr"]
                p.data.sub_(rate * p.grad)


class SgdOfTheUser(torch.optim.SGD):
    """A subclass of an optimizer may not be elementwise."""


def a_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def gradients(length):
    return [numbers(length, seed=step) for step in range(STEPS)]


def steps_of_torch(task, clip_norm=None):
    """The parameters after a few steps of torch's own optimizer."""
    model = a_model()
    layout, optimizer = Layout.of(model), task.build_optimizer(model)
    schedule = task.build_schedule(optimizer)
    for gradient in gradients(layout.length):
        for parameter, part in zip(model.parameters(), layout.views(gradient.clone()), strict=True):
            parameter.grad = part
        if clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def steps_on_shards(task, parts, whole=False):
    """The same with a replica that is updated shard by shard."""
    replica = Replica.of(task, a_model())
    shards = replica.layout.whole_shards(parts) if whole else replica.layout.even_shards(parts)
    for gradient in gradients(replica.layout.length):
        replica.gradient.copy_(gradient)
        norm = float(replica.gradient.norm())
        for shard in shards:
            replica.apply(shard, norm)
    return replica.parameters


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_flat_step_equals_torchs_own_step(name):
    task = a_task(optimizer=ELEMENTWISE[name])
    torch.testing.assert_close(steps_on_shards(task, 1), steps_of_torch(task), rtol=0, atol=1e-14)


@pytest.mark.parametrize("parts", [2, 3, 7, 60])  # 60: more shards than elements
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_shards_together_take_the_step_of_the_whole(name, parts):
    task = a_task(optimizer=ELEMENTWISE[name])
    assert torch.equal(steps_on_shards(task, parts), steps_on_shards(task, 1))


@pytest.mark.parametrize("parts", [1, 3])
def test_groups_that_lie_interleaved_keep_their_own_settings(parts):
    def make(params):
        weight, bias, head, head_bias = params
        weights = {"params": [weight, head], "lr": 0.3, "weight_decay": 0.2}
        return torch.optim.SGD([weights, {"params": [head_bias, bias]}], lr=0.05, momentum=0.9)

    task = a_task(optimizer=make)
    torch.testing.assert_close(steps_on_shards(task, parts), steps_of_torch(task), rtol=0, atol=1e-14)


@pytest.mark.parametrize("parts", [1, 3])
def test_parameters_that_no_group_holds_stay_as_they_are(parts):
    task = a_task(optimizer=lambda model: torch.optim.SGD(model.get_submodule("2").parameters(), lr=0.1))
    before = Replica.of(task, a_model()).parameters.clone()
    after = steps_on_shards(task, parts)
    torch.testing.assert_close(after, steps_of_torch(task), rtol=0, atol=1e-14)
    assert torch.equal(after[:25], before[:25])


@pytest.mark.parametrize("parts", [1, 3])
def test_a_schedule_moves_the_rate_once_a_step(parts):
    task = a_task(schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1))
    torch.testing.assert_close(steps_on_shards(task, parts), steps_of_torch(task), rtol=0, atol=1e-14)


def test_a_step_may_leave_the_schedule_where_it_is_until_it_is_moved_on():
    task = a_task(schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1))
    replica = Replica.of(task, a_model())
    moved = []
    for updates in (0, 0, 2):
        replica.advance_schedule(updates)
        before = replica.parameters.clone()
        replica.gradient.fill_(1.0)
        replica.apply(advance=False)
        moved.append(float((before - replica.parameters).max()))
    assert moved == pytest.approx([0.1, 0.1, 0.001])


def test_a_schedule_that_is_moved_on_before_the_first_update_is_no_mistake():
    task = a_task(schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Replica.of(task, a_model()).advance_schedule(3)


def test_a_reset_optimizer_has_forgotten_its_momentum_and_begins_its_schedule_anew():
    task = a_task(
        optimizer=ELEMENTWISE["momentum"],
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1),
    )
    replica = Replica.of(task, a_model())
    start, (gradient, *_) = replica.parameters.clone(), gradients(replica.layout.length)
    ends = []
    for _ in range(2):
        replica.parameters.copy_(start)
        replica.reset_optimizer()
        for _ in range(3):
            replica.gradient.copy_(gradient)
            replica.apply()
        ends.append(replica.parameters.clone())
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("name", "count"), [("sgd", 0), ("momentum", 1), ("adam", 2), ("amsgrad", 3), ("adagrad", 1)]
)
def test_moments_are_what_is_remembered_of_the_parameters_with_or_without_mathematics(name, count):
    task = a_task(optimizer=ELEMENTWISE[name])
    real = Replica.of(task, a_model())
    real.apply()
    shapes = Replica.of_shapes(ShapeModel(task, a_model().to("meta")))
    for replica in (real, shapes):
        moments = replica.moments()
        assert sum(moment.numel() for moment in moments) == count * replica.layout.length
    assert all(moment.is_meta for moment in shapes.moments())


@pytest.mark.parametrize("clip_norm", [0.5, 100.0])
@pytest.mark.parametrize("parts", [1, 3])
def test_clipping_is_torchs_clip_grad_norm(parts, clip_norm):
    task = a_task(clip_norm=clip_norm)
    torch.testing.assert_close(
        steps_on_shards(task, parts), steps_of_torch(task, clip_norm), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
def test_an_optimizer_that_needs_whole_layers_gets_them(parts):
    task = a_task(optimizer=Lars)
    got = steps_on_shards(task, parts, whole=True)
    torch.testing.assert_close(got, steps_of_torch(task), rtol=0, atol=1e-14)


def test_only_torchs_elementwise_optimizers_are_cut_anywhere():
    model = a_model()
    assert all(works_elementwise(make(model.parameters())) for make in ELEMENTWISE.values())
    assert not works_elementwise(Lars(model.parameters()))
    assert not works_elementwise(SgdOfTheUser(model.parameters(), lr=0.1))
    assert Replica.of(a_task(optimizer=Lars), a_model()).shards(2) == [slice(0, 20), slice(20, 43)]
    assert Replica.of(a_task(), a_model()).shards(2) == [slice(0, 22), slice(22, 43)]


def test_neighbours_of_one_group_are_updated_as_one():
    model = a_model()
    layout = Layout.of(model)
    flat = torch.zeros(layout.length, dtype=torch.float64)
    memory = lambda part: (flat[part], flat.clone()[part])  # noqa: E731
    optimizer = FlatOptimizer(a_task(), model, layout, memory, [slice(0, layout.length)])
    (group,) = optimizer.optimizer.param_groups
    assert [len(p) for p in group["params"]] == [layout.length]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(flat_groups, "BLOCK", 8)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_blocks_that_are_updated_one_by_one_give_the_same_bits(name, parts, monkeypatch):
    task = a_task(optimizer=ELEMENTWISE[name])
    expected = steps_on_shards(task, parts)
    monkeypatch.setattr(flat_groups, "BLOCK", 8)
    assert torch.equal(steps_on_shards(task, parts), expected)


def test_what_is_remembered_of_blocks_is_one_tensor_which_they_go_on_with(small_blocks):
    replica = Replica.of(a_task(optimizer=ELEMENTWISE["momentum"]), a_model())
    for gradient in gradients(replica.layout.length)[:2]:
        replica.gradient.copy_(gradient)
        replica.apply()
        (moment,) = replica.moments()
        assert len(moment) == replica.layout.length
    before = moment.clone()
    replica.apply()
    (again,) = replica.moments()
    assert again.data_ptr() == moment.data_ptr()
    assert not torch.equal(moment, before)


@pytest.mark.parametrize("name", ["momentum", "adam", "adagrad", "asgd"])
def test_what_is_kept_of_blocks_is_by_whole_parameters_and_fits_blocks_again(name, small_blocks):
    task = a_task(optimizer=ELEMENTWISE[name])
    first, *others = gradients(Replica.of(task, a_model()).layout.length)
    replicas = [Replica.of(task, a_model()) for _ in range(2)]
    replicas[0].gradient.copy_(first)
    replicas[0].apply()
    tensors, facts = keep_updates(replicas[0].updates, replicas[0].layout)
    assert {key.split("/")[1] for key in tensors} == set(replicas[0].layout.names)
    replicas[1].parameters.copy_(replicas[0].parameters)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    replicas[1].updates.kept = SavedOptimizerState(replicas[1].layout, [(copies, facts)])
    for gradient in others:
        for replica in replicas:
            replica.gradient.copy_(gradient)
            replica.apply()
    assert torch.equal(replicas[0].parameters, replicas[1].parameters)


class Bag(nn.Module):
    """A table of which each batch uses only some rows."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(50, 3, sparse=True).double()

    def forward(self, numbers):
        return self.rows(numbers).sum(1)


@pytest.mark.parametrize("spec", ["single", "all-reduce", "all-reduce:algorithm=shared", "sync:servers=1"])
def test_an_optimizer_that_wants_sparse_gradients_gets_the_rows_that_samples_touched(spec):
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 50, (24, 2), generator=generator)
    task = pl.Task(
        model=Bag,
        data=(numbers, torch.randn(24, 3, generator=generator, dtype=torch.float64)),
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SparseAdam(list(params), lr=0.05),
        batch_size=6,
    )
    assert len(numbers.unique()) < 50, "some rows are never touched"
    run = pl.train(task, spec, simulated(2), steps=5)
    model, batches = task.build_model(0), GlobalBatches(24, 6, 0)
    optimizer = task.optimizer(model.parameters())
    for step in range(5):
        chosen = torch.from_numpy(batches.indices(step))
        optimizer.zero_grad()
        task.loss(model(task.data[0][chosen]), task.data[1][chosen]).backward()
        optimizer.step()
    torch.testing.assert_close(run.model.rows.weight, model.rows.weight, rtol=0, atol=1e-12)
