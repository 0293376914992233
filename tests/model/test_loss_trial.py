"""A loss that is not a mean over its samples is found by one trial, which changes nothing."""

import functools

import pytest
import torch
from tasks import numbers
from torch import nn
from torch.nn import functional

from paceline.model.loss_trial import is_no_mean, stores_nothing

SAMPLES = 7
WEIGHTS = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
TARGETS = torch.arange(SAMPLES) % 3
IGNORED = torch.where(torch.arange(SAMPLES) == 5, -100, TARGETS)


def model():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).double()


def tried(loss, target=TARGETS, of=None):
    return is_no_mean(loss, (of or model())(numbers(SAMPLES, 4)), target)


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (nn.CrossEntropyLoss(reduction="sum"), TARGETS),
        (nn.CrossEntropyLoss(weight=WEIGHTS), TARGETS),
        (nn.CrossEntropyLoss(), IGNORED),
        (
            lambda outputs, target: functional.cross_entropy(outputs, target, reduction="sum") / SAMPLES,
            TARGETS,
        ),
        (lambda outputs, target: outputs.std(), TARGETS),
        (nn.CrossEntropyLoss(), torch.where(torch.arange(SAMPLES) < 2, -100, TARGETS)),
    ],
    ids=["sum", "class-weights", "ignore-index", "sum-over-fixed-size", "of-the-batch", "a-part-ignored"],
)
def test_a_loss_that_is_no_mean_over_samples_is_found(loss, target):
    assert tried(loss, target)


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (nn.CrossEntropyLoss(), TARGETS),
        (nn.CrossEntropyLoss(label_smoothing=0.1), TARGETS),
        (
            lambda outputs, target: functional.cross_entropy(outputs, target, reduction="sum") / len(target),
            IGNORED,
        ),
        (
            lambda outputs, target: functional.cross_entropy(
                outputs, target, WEIGHTS, reduction="none"
            ).mean(),
            TARGETS,
        ),
        (lambda outputs, target: functional.mse_loss(outputs.sum(1), target.double()), TARGETS),
    ],
    ids=["mean", "smoothing", "over-all-targets", "mean-of-weighted", "squares"],
)
def test_a_mean_over_samples_is_one(loss, target):
    assert not tried(loss, target)


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_few_samples_are_split_too(samples):
    outputs = model().eval()(numbers(samples, 4))
    assert is_no_mean(nn.CrossEntropyLoss(reduction="sum"), outputs, TARGETS[:samples]) == (samples > 1)


def test_outputs_that_are_not_by_sample_are_left_alone():
    class Flat(nn.Linear):
        def forward(self, x):
            return super().forward(x).reshape(-1)

    assert not tried(lambda outputs, target: outputs.sum(), of=Flat(4, 3).double())


def test_a_loss_that_is_not_finite_is_not_judged():
    assert not tried(nn.CrossEntropyLoss(), torch.full((SAMPLES,), -100))


def test_a_trial_leaves_the_loss_and_what_it_is_given_as_they_were():
    class Centered(nn.Module):
        """Changes its outputs in place, and remembers them."""

        def __init__(self):
            super().__init__()
            self.register_buffer("center", torch.zeros(3, dtype=torch.float64))

        def forward(self, outputs, target):
            self.center += outputs.mean(0)
            return functional.cross_entropy(outputs.sub_(1.0).mul_(2.0), target)

    loss, outputs = Centered(), model()(numbers(SAMPLES, 4))
    before = outputs.clone()
    assert not is_no_mean(loss, outputs, TARGETS)
    assert not loss.center.any()
    assert torch.equal(outputs, before)


# Losses that may be called once more


CRITERION = nn.CrossEntropyLoss(reduction="sum")
CALLS = []


def helping(outputs, target):
    return functional.cross_entropy(outputs, target, WEIGHTS)


def counting(outputs, target):
    CALLS.append(len(target))
    return CRITERION(outputs, target)


def annealed():
    calls = 0

    def loss(outputs, target):
        nonlocal calls
        calls += 1
        return CRITERION(outputs, target) * calls

    return loss


class Stateful:
    def __call__(self, outputs, target):
        return CRITERION(outputs, target)


@pytest.mark.parametrize(
    "loss",
    [
        CRITERION,
        functional.mse_loss,
        functools.partial(functional.cross_entropy, ignore_index=0),
        lambda outputs, target: 2 * helping(outputs, target),
        lambda outputs, target: CRITERION(outputs, target) / len(target),
    ],
)
def test_modules_and_functions_that_store_nothing_are_tried(loss):
    assert stores_nothing(loss)


@pytest.mark.parametrize("loss", [counting, annealed(), lambda o, t: 2 * counting(o, t), Stateful()])
def test_a_loss_that_may_count_its_calls_is_not_tried(loss):
    """A loss may change with the number of its calls: a weight that is annealed, say."""
    assert not stores_nothing(loss)
