"""Each operation that can be done on parts, against the same operation on the whole value.

All ranks' parts are computed one after the other in one process, between a layer that is split by columns and one that
is split by rows. A layer before them checks that gradients reach earlier layers.
"""

import pytest
import torch
from by_hand import compute_whole
from conformance.cases import one_in
from refusals import has, refused
from tasks import a_task, numbers
from tensor_by_hand import compute_in_parts, cut_in
from tensor_losses import CLASSES, LOSSES, TARGET
from tensor_operations import CASES, LENGTH, REFUSED, WIDTH
from torch import nn

from paceline.model.tensor_parallel.rules import RULES

SIZES = (2, 3)
EVERY = [
    (name, number, size) for name, cases in CASES.items() for number in range(len(cases)) for size in SIZES
]
EVERY_LOSS = [
    (name, number, size) for name, losses in LOSSES.items() for number in range(len(losses)) for size in SIZES
]


class Between(nn.Module):
    """An operation between two split layers, after a layer that is not split."""

    def __init__(self, case):
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, case.columns), nn.Linear(case.rows, WIDTH)
        self.register_buffer("of", torch.linspace(0.1, 2.0, case.columns))
        self.apply_case = case.apply

    def forward(self, x):
        x = self.before(x)
        return self.down(self.apply_case(self.up(x), x, self.of))


class Recorded:
    """The mean of squares, and all outputs that it was called with."""

    def __init__(self):
        self.outputs = []

    def __call__(self, outputs, _):
        self.outputs.append(outputs.detach().clone())
        return outputs.square().mean()


@pytest.fixture
def used(monkeypatch):
    """Names of the rules that were applied, and what they returned."""
    found = {}

    def spy(name, rule):
        def apply(look, node):
            found[name] = rule(look, node)
            return found[name]

        return apply

    for name, rule in RULES.items():
        monkeypatch.setitem(RULES, name, spy(name, rule))
    return found


def task_of(case, loss):
    return a_task(
        model=lambda: Between(case).double(),
        data=(numbers(24, LENGTH, WIDTH), numbers(24, 1, seed=1)),
        loss=loss,
        tensor_plan={"up": "column", "down": "row"},
    )


def assert_gradients_are_those_of_the_whole(task, size):
    loss, gradients, _ = compute_whole(task)
    found_loss, cut, found = compute_in_parts(task, size)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    for position, own in enumerate(found):
        assert set(own) == {name for name in gradients if cut.shares.holds(name, position)}
        expected = {name: cut.at(position).part(name, gradients[name]) for name in own}
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-12)


def test_every_rule_has_a_case():
    assert set(CASES) | set(LOSSES) == set(RULES)


@pytest.mark.parametrize(("name", "number", "size"), one_in(7, EVERY))
def test_an_operation_on_parts_gives_outputs_and_gradients_of_the_whole(name, number, size, used):
    case, loss = CASES[name][number], Recorded()
    assert_gradients_are_those_of_the_whole(task_of(case, loss), size)
    assert (used[name] is None) == case.gives_whole
    whole, *parts = loss.outputs[:1] + loss.outputs[-size:]
    for part in parts:
        torch.testing.assert_close(part, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "number", "size"), one_in(5, EVERY_LOSS))
def test_a_loss_of_parts_of_the_classes_is_that_of_all(name, number, size, used):
    task = a_task(
        model=lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)).double(),
        data=(numbers(24, LENGTH, WIDTH), TARGET),
        loss=LOSSES[name][number],
        tensor_plan={"1": "column"},
    )
    assert_gradients_are_those_of_the_whole(task, size)
    assert name in used


@pytest.mark.parametrize("name", REFUSED)
def test_an_operation_that_needs_whole_values_is_refused_by_its_name(name):
    task = task_of(REFUSED[name], Recorded())
    with refused("tensor_plan", bound=has(name)):
        cut_in(task, 2)
