import math
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from refusals import refused
from torch import nn

from paceline.model.meters import concatenate, meter_of, named_meter
from paceline.task.metrics import METRIC_NAMES, accuracy

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


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_named_metrics_keep_no_outputs(name):
    meter = meter_of("metric", name, nn.functional.cross_entropy)
    meter.update(OUTPUTS, TARGETS if name in ("accuracy", "loss", "perplexity") else OUTPUTS)
    assert not any(isinstance(value, torch.Tensor | list) for value in vars(meter).values())


def test_the_mean_of_pieces_is_that_of_the_whole():
    outputs, targets = torch.randn(7, 3), torch.randn(7, 3)
    whole = (outputs - targets).double()
    expected = {"mse": whole.square().mean(), "rmse": whole.square().mean().sqrt(), "mae": whole.abs().mean()}
    for name, value in expected.items():
        meter = meter_of("metric", name)
        for piece in PIECES:
            meter.update(outputs[piece], targets[piece])
        assert meter.compute() == pytest.approx(value.item(), rel=1e-6)


def test_differences_name_the_metric_that_was_asked_for():
    with refused("metric 'rmse'"):
        meter_of("metric", "rmse").update(torch.zeros(4, 1), torch.zeros(4))


def entropy_of(pieces, name):
    meter = meter_of("metric", name, nn.functional.cross_entropy)
    for piece in pieces:
        meter.update(OUTPUTS[piece], TARGETS[piece])
    return meter.compute()


def test_perplexity_is_the_exponential_of_the_tasks_loss_over_all_samples():
    loss = nn.functional.cross_entropy(OUTPUTS, TARGETS).item()
    assert entropy_of([slice(None)], "loss") == loss
    assert entropy_of(PIECES, "loss") == pytest.approx(loss)
    assert entropy_of(PIECES, "perplexity") == pytest.approx(math.exp(loss))


def test_a_perplexity_that_is_too_large_is_infinite():
    meter = meter_of("metric", "perplexity", lambda outputs, targets: 1e4)
    meter.update(OUTPUTS, TARGETS)
    assert meter.compute() == math.inf


@pytest.mark.parametrize("outputs", [SimpleNamespace(loss=torch.tensor(2.0)), {"loss": torch.tensor(2.0)}])
def test_without_a_loss_in_the_task_it_is_the_models_own(outputs):
    meter = meter_of("metric", "perplexity")
    assert meter.takes_all_outputs
    meter.update(outputs, TARGETS)
    assert meter.compute() == math.exp(2.0)


def test_a_loss_that_neither_task_nor_model_has_is_no_metric():
    with refused("loss", "Tensor"):
        meter_of("metric", "loss").update(OUTPUTS, TARGETS)


@pytest.mark.parametrize("targets", [(TARGETS, TARGETS), {"a": TARGETS, "b": TARGETS}, TARGETS])
def test_a_loss_counts_by_its_samples(targets):
    meter = meter_of("metric", "loss", lambda outputs, targets: outputs)
    meter.update(1.0, targets)
    meter.update(8.0, TARGETS[:0].new_zeros(14))
    assert meter.compute() == pytest.approx((7 * 1.0 + 14 * 8.0) / 21)


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
    with refused("f1", 3):
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


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_a_part_of_a_named_metric_is_added_by_another_to_the_same_bits(name):
    def targets(piece):
        return (TARGETS if name in ("accuracy", "loss", "perplexity") else OUTPUTS.flip(0))[piece]

    whole, finder, adder = (named_meter(name, nn.functional.cross_entropy) for _ in range(3))
    for piece in PIECES:
        whole.update(OUTPUTS[piece], targets(piece))
        adder.add(*finder.part(OUTPUTS[piece], targets(piece)))
    assert adder.compute() == whole.compute()
