"""Optimizer state is saved by parameter name, so it fits any sharding."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import has, refused
from tasks import a_task, samples
from torch import nn

from paceline.model.layout import Layout, Within
from paceline.model.optimizer.saved_state import (
    SavedOptimizerState,
    _label,
    _shaped,
    keep_module,
    keep_updates,
    load_module,
    names_of_state,
)
from paceline.model.replica import Replica


class Whole(torch.optim.Optimizer):
    """An optimizer that needs whole parameters, with state that is not elementwise: a number, and the norm of each
    row."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                rows = p.grad.reshape(p.shape[0] if p.dim() else 1, -1).norm(dim=1)
                state["rows"] = state.get("rows", torch.zeros_like(rows)) + rows
                p.sub_(p.grad * group["lr"] / (state["rows"].sum() + state["count"]))


OPTIMIZERS = {
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.1, amsgrad=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "rprop": lambda params: torch.optim.Rprop(params, lr=0.1),
    "whole": Whole,
    "groups": lambda params: torch.optim.Adam(
        [
            {"params": [p for p in params if p.dim() > 1]},
            {"params": [p for p in params if p.dim() < 2], "lr": 0.3},
        ]
    ),
}


class Odd(nn.Module):
    """Parameters of many shapes: a single number, none at all, and one that does not learn."""

    def __init__(self):
        super().__init__()
        shapes = {"a": (3, 5), "scalar": (), "b": (7,), "nothing": (0, 4), "one": (1,), "c": (2, 3, 2)}
        generator = torch.Generator().manual_seed(0)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator).double()))
        self.frozen = nn.Parameter(torch.ones(3).double(), requires_grad=False)
        self.register_buffer("count", torch.tensor(4))


def a_replica(optimizer):
    made = lambda params: OPTIMIZERS[optimizer](list(params))  # noqa: E731
    schedule = lambda each: torch.optim.lr_scheduler.MultiStepLR(each, [2, 3], gamma=0.3)  # noqa: E731
    task = a_task(model=Odd, optimizer=made, schedule=schedule)
    return Replica.of(task, Odd())


def step(replica, number, shards):
    generator = torch.Generator().manual_seed(number)
    replica.gradient.copy_(torch.randn(replica.gradient.shape, generator=generator, dtype=torch.float64))
    for shard in shards:
        replica.apply(shard)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=st.integers(1, 6), after=st.integers(1, 6), steps=st.integers(1, 4))
def test_another_cut_goes_on_as_if_it_had_been_there_from_the_start(optimizer, before, after, steps):
    plain, first, then = (a_replica(optimizer) for _ in range(3))
    whole = [slice(0, plain.layout.length)]
    for number in range(steps):
        step(plain, number, whole)
        step(first, number, first.shards(before))
    tensors, facts = keep_updates(first.updates, first.layout)
    load_module(then.module, keep_module(first.module), {})
    then.updates.kept = SavedOptimizerState(then.layout, [(tensors, facts)])
    for number in range(steps, steps + 2):
        step(plain, number, whole)
        step(then, number, then.shards(after))
    assert torch.equal(then.parameters, plain.parameters)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_state_that_no_update_has_used_is_saved_again(optimizer):
    first, then = (a_replica(optimizer) for _ in range(2))
    for number in range(3):
        step(first, number, first.shards(2))
    tensors, facts = keep_updates(first.updates, first.layout)
    then.updates.kept = SavedOptimizerState(then.layout, [(tensors | keep_module(first.module), facts)])
    again, facts_again = keep_updates(then.updates, then.layout, with_unused=True)
    assert facts_again == facts
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_names_are_those_of_parameters_and_of_parts_of_them():
    replica = a_replica("momentum")
    step(replica, 0, replica.shards(3))
    tensors, _ = keep_updates(replica.updates, replica.layout)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    # 36 numbers in three shards: `a` has 15 of them, and is cut after its 12th.
    assert shapes["optimizer/a[0:12]/momentum_buffer"] == (12,)
    assert shapes["optimizer/a[12:15]/momentum_buffer"] == (3,)
    assert shapes["optimizer/b/momentum_buffer"] == (7,)
    assert shapes["optimizer/c/momentum_buffer"] == (2, 3, 2)
    assert shapes["optimizer/scalar[0:1]/momentum_buffer"] == (1,)
    assert sum(tensor.numel() for tensor in tensors.values()) == replica.layout.length


def test_shards_of_a_split_matrix_are_saved_by_their_places_in_it_and_fit_any_other_split():
    whole = torch.arange(24.0).view(4, 6)
    halves = [Within(whole.shape, 1, places) for places in (((0, 1), (3, 4), (5, 6)), ((1, 3), (4, 5)))]
    tensors = {}
    for within in halves:
        part = within.of(whole)
        layout = Layout(("w",), (part.shape,), (0, 12), (whole.dtype,), whole.dtype, {"w": within})
        for a, b in ((0, 5), (5, 12)):
            values = part.reshape(-1)[a:b]
            tensors[f"optimizer/{_label(layout, 0, a, b)}/m"] = _shaped(layout, 0, values)
    assert "optimizer/w[1@1:3+4:5][5:12]/m" in tensors
    facts = [{"shard": [0, 24], "elsewhere": 0, "optimizers": {}}]
    now = Layout(("w",), (whole.shape,), (0, 24), (whole.dtype,), whole.dtype)
    found = SavedOptimizerState(now, [(tensors, facts)])._of("", "w", "m")
    assert torch.equal(torch.cat([part for _, _, part in found.parts]), whole.reshape(-1))
    one = {name: tensor for name, tensor in tensors.items() if "[0:5]" in name}
    known = SavedOptimizerState(
        replace(now, shapes=(torch.Size((4, 3)),), offsets=(0, 12), within={"w": halves[1]}), [(one, facts)]
    )
    assert [(a, b) for a, b, _ in known._of("", "w", "m").parts] == [(0, 5)]


def test_a_part_that_is_missing_is_refused():
    replica, other = a_replica("momentum"), a_replica("momentum")
    step(replica, 0, replica.shards(3))
    tensors, facts = keep_updates(replica.updates, replica.layout)
    del tensors["optimizer/a[0:12]/momentum_buffer"]
    other.updates.kept = SavedOptimizerState(other.layout, [(tensors, facts)])
    with refused("checkpoint", has(12), bound=has("momentum_buffer")):
        step(other, 1, [None])


def test_a_schedule_that_goes_by_the_metric_goes_on():
    def task():
        make = lambda made: torch.optim.lr_scheduler.ReduceLROnPlateau(made, patience=0, factor=0.5)  # noqa: E731
        test = {"test": samples(4), "metric": lambda outputs, targets: 0.0}
        return a_task(model=Odd, optimizer=OPTIMIZERS["momentum"], schedule=make, **test)

    plain, then = Replica.of(task(), Odd()), Replica.of(task(), Odd())
    for number, metric in enumerate([3.0, 2.0, 2.5]):
        step(plain, number, [None])
        plain.updates.note_metric(metric)
    tensors, facts = keep_updates(plain.updates, plain.layout)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    load_module(then.module, keep_module(plain.module), {})
    then.updates.kept = SavedOptimizerState(then.layout, [(tensors, facts)])
    for number, metric in enumerate([2.6, 1.0, 3.0], start=3):
        for each in (plain, then):
            step(each, number, [None])
            each.updates.note_metric(metric)
    assert torch.equal(then.parameters, plain.parameters)


def test_the_module_is_kept_with_all_that_it_has():
    module, other = Odd(), Odd()
    with torch.no_grad():
        for tensor in (*module.parameters(), module.count):
            tensor.add_(1)
    load_module(other, keep_module(module), {})
    assert all(
        torch.equal(a, b)
        for a, b in zip(module.state_dict().values(), other.state_dict().values(), strict=True)
    )


def test_a_module_of_other_shapes_is_refused():
    with refused("checkpoint", (2, 3), bound=has("parameters/weight", "(2, 4)")):
        load_module(nn.Linear(4, 2), keep_module(nn.Linear(3, 2)), {})


def test_a_tensor_of_two_names_is_kept_once():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    names = names_of_state(model)
    assert names["1.weight"] == names["0.weight"] == "parameters/0.weight"
    assert set(names.values()) == {"parameters/0.weight", "parameters/0.bias", "parameters/1.bias"}
