from typing import NamedTuple

import pytest
import torch
from torch import nn

from paceline.errors import ConfigurationError
from paceline.metrics import accuracy
from paceline.replica.meters import concatenate, meter_of

OUTPUTS, TARGETS = torch.eye(5)[[0, 1, 2, 3, 4, 0, 1]], torch.tensor([0, 1, 0, 0, 4, 0, 1])
PIECES = (slice(0, 3), slice(3, 4), slice(4, 7))


class Seen:
    """As torchmetrics has it."""

    def __init__(self):
        self.sizes = []

    def update(self, outputs, targets):
        self.sizes.append(len(outputs))

    def compute(self):
        return float(sum(self.sizes))

    def reset(self):
        self.sizes.clear()


def measure(given):
    meter = meter_of("metric", given)
    for piece in PIECES:
        meter.update(OUTPUTS[piece], TARGETS[piece])
    return meter.compute()


def test_accuracy_by_pieces_is_exactly_that_of_the_whole():
    assert measure("accuracy") == accuracy(OUTPUTS, TARGETS) == 5 / 7


def test_accuracy_keeps_no_outputs():
    meter = meter_of("metric", "accuracy")
    meter.update(OUTPUTS, TARGETS)
    assert not any(isinstance(value, torch.Tensor | list) for value in vars(meter).values())


def test_a_function_of_any_arguments_is_no_factory():
    assert measure(lambda *given: len(given)) == 2


def test_a_function_gets_everything():
    assert measure(lambda outputs, targets: torch.equal(outputs, OUTPUTS) and torch.equal(targets, TARGETS))


def make():
    return Seen()


@pytest.mark.parametrize("given", [Seen(), make, Seen], ids=["object", "factory", "class"])
def test_what_has_update_and_compute_gets_one_batch_after_the_other(given):
    assert measure(given) == 7.0


def test_an_object_is_copied_and_begins_anew_at_every_evaluation():
    given = Seen()
    given.update(OUTPUTS, TARGETS)
    assert [measure(given), measure(given)] == [7.0, 7.0]
    assert given.sizes == [7]


def test_a_factory_of_something_else_is_refused():
    with pytest.raises(
        ConfigurationError, match="f1 must make a metric where it takes no argument, but got 3"
    ):
        meter_of("f1", lambda: 3)


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def test_batches_are_put_together_by_key_and_by_place():
    one, two = torch.zeros(2, 3), torch.ones(1, 3)
    whole = torch.cat([one, two])
    assert torch.equal(concatenate([one, two]), whole)
    assert torch.equal(concatenate([{"a": one, "b": [one]}, {"a": two, "b": [two]}])["b"][0], whole)
    assert torch.equal(concatenate([Pair(one, one), Pair(two, two)]).second, whole)
    assert concatenate([torch.tensor(1.0), torch.tensor(2.0)]).tolist() == [1.0, 2.0]
    assert concatenate([None, None]) is None


def test_a_metric_of_torchmetrics_is_taken_as_it_is():
    torchmetrics = pytest.importorskip("torchmetrics")
    f1 = torchmetrics.classification.MulticlassF1Score(num_classes=5)
    expected = torchmetrics.functional.f1_score(
        OUTPUTS, TARGETS, task="multiclass", num_classes=5, average="macro"
    )
    assert float(measure(f1)) == pytest.approx(float(expected))
    assert isinstance(f1, nn.Module)
    assert f1.update_count == 0  # the user's own is not touched
