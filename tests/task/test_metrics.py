import math
from functools import partial

import pytest
import torch
from refusals import has, refused
from tasks import WORLDS, a_task, samples, simulated
from torch import nn

import paceline as pl
from paceline.task.metrics import (
    METRIC_NAMES,
    accuracy,
    better_of,
    mae,
    mse,
    reaches,
    value_of,
)

# Named metrics


def test_accuracy_is_the_share_of_largest_outputs_that_the_targets_name():
    outputs = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert accuracy(outputs, torch.tensor([1, 0, 0, 1])) == 0.75


@pytest.mark.parametrize(("outputs", "targets"), [((4, 1), (4,)), ((4, 3), (4, 1)), ((4,), (4,)), ((), ())])
def test_accuracy_refuses_shapes_that_would_broadcast(outputs, targets):
    with refused("metric 'accuracy'"):
        accuracy(torch.zeros(outputs), torch.zeros(targets))


def test_differences_are_squared_or_absolute():
    outputs, targets = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 7.0])
    assert mse(outputs, targets) == pytest.approx(20 / 3)
    assert mae(outputs, targets) == pytest.approx(2)


@pytest.mark.parametrize("metric", [mse, mae])
def test_differences_of_shapes_that_would_broadcast_are_refused(metric):
    with refused(f"metric '{metric.__name__}'", "(4, 1) and (4,)"):
        metric(torch.zeros(4, 1), torch.zeros(4))


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_every_named_metric_is_evaluated(name):
    labels = torch.arange(24) % 2
    targets = labels if name == "accuracy" else samples()[1]
    loss = nn.functional.cross_entropy if name == "accuracy" else nn.functional.mse_loss
    data = (samples()[0], targets)
    run = pl.train(a_task(data=data, test=data, loss=loss, metric=name), "all-reduce", simulated(2), steps=2)
    assert math.isfinite(run.metric)
    assert run.better == ("higher" if name == "accuracy" else "lower")


# Which way is better


def validation_error(outputs, targets):
    return 0.0


def negative_log_likelihood_loss(outputs, targets):
    return 0.0


def _negative_loss(outputs, targets):
    return 0.0


def neg_mean_squared_error(outputs, targets):
    return 0.0


class MeanSquaredError:
    def __call__(self, outputs, targets):
        return 0.0


class Dice:
    higher_is_better = True

    def __call__(self, outputs, targets):
        return 0.0


class Distance(Dice):
    higher_is_better = False


@pytest.mark.parametrize(
    ("metric", "better"),
    [
        ("accuracy", "higher"),
        ("loss", "lower"),
        ("perplexity", "lower"),
        ("rmse", "lower"),
        (validation_error, "lower"),
        (partial(validation_error), "lower"),
        (negative_log_likelihood_loss, "lower"),
        (_negative_loss, "higher"),
        (neg_mean_squared_error, "higher"),
        (MeanSquaredError(), "lower"),
        (nn.MSELoss(), "lower"),
        (nn.functional.l1_loss, "lower"),
        (Dice(), "higher"),
        (Distance(), "lower"),
        (lambda outputs, targets: 0.0, "higher"),
        (None, "higher"),
    ],
)
def test_a_name_may_say_which_way_is_better(metric, better):
    assert better_of(metric) == better
    assert better_of(metric, "lower") == "lower"
    assert better_of(metric, "higher") == "higher"


@pytest.mark.parametrize(
    ("value", "better", "reached"),
    [
        (1.0, "higher", True),
        (0.9, "higher", False),
        (1.0, "lower", True),
        (1.1, "lower", False),
        (math.nan, "higher", False),
        (math.nan, "lower", False),
        (None, "lower", False),
    ],
)
def test_a_value_reaches_its_target_from_one_side(value, better, reached):
    assert reaches(value, 1.0, better) is reached
    assert not reaches(value, None, better)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ["all-reduce", "local-sgd"])
def test_a_run_stops_when_its_loss_is_low_enough(spec, world):
    """The first loss is above the target, so that a run which took higher for better would stop at once."""
    test = samples(12)
    first = pl.train(a_task(test=test, metric="loss"), spec, simulated(2), steps=1).metric
    task = a_task(test=test, metric="loss", target=0.97 * first)
    run = pl.train(task, spec, WORLDS[world](2), steps=200, evaluate_every=1, stop_at_target=True)
    assert run.reached_target
    assert 2 < run.steps < 200
    assert run.record_at_target.metric <= 0.97 * first < run.history[0].metric


# Errors


def test_outputs_that_a_metric_cannot_take_are_refused_by_name():
    def top(outputs, targets):
        return (outputs.logits.argmax(-1) == targets).float().mean()

    shapes = has("(4, 3)", "torch.float32", "(4,)")
    with refused("metric 'top'", shapes, remedy=has("in top", "AttributeError")):
        value_of(top, torch.zeros(4, 3), torch.zeros(4))


@pytest.mark.parametrize(
    ("value", "look"),
    [
        (torch.zeros(3), "of shape (3,)"),
        (None, "of type NoneType"),
        ({"f1": 1.0}, "of type dict with f1"),
        ((1.0, 2.0), "of type tuple"),
    ],
)
def test_a_metric_that_is_no_number_is_refused(value, look):
    with refused("metric '<lambda>'") as caught:
        value_of(lambda outputs, targets: value, None, None)
    assert look in str(caught.value)


def test_a_metric_may_be_a_tensor_of_one_element():
    assert value_of(lambda outputs, targets: torch.tensor([0.5]), None, None) == 0.5


@pytest.mark.parametrize("world", WORLDS)
def test_a_metric_that_fails_in_a_run_is_named(world):
    def top(outputs, targets):
        return outputs.logits

    with refused("metric 'top'", remedy=has("in top")):
        pl.train(a_task(test=samples(6), metric=top), "all-reduce", WORLDS[world](2), steps=1)
