import numpy as np
import pytest
import torch
from refusals import has, refused, unknown
from tasks import a_task
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from paceline.errors import ConfigurationError
from paceline.task.checks import look_of


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


class Endless(Dataset):
    def __getitem__(self, index):
        return torch.zeros(1), torch.zeros(1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("batch_size", 0),
        ("batch_size", -4),
        ("batch_size", True),
        ("batch_size", 2.0),
        ("batch_size", "2"),
        ("clip_norm", 0),
        ("clip_norm", -1.0),
        ("clip_norm", float("nan")),
        ("clip_norm", float("inf")),
        ("clip_norm", "1"),
        ("model", 3),
        ("model", None),
        ("model", nn.ReLU()),
        ("model", nn.Linear(3, 1).requires_grad_(False)),
        ("model", nn.LazyLinear(1)),
        ("loss", "mse"),
        ("loss", nn.MSELoss),
        ("loss", nn.Linear(1, 1)),
        ("optimizer", "sgd"),
        ("optimizer", torch.optim.SGD([torch.zeros(1, requires_grad=True)])),
        ("schedule", 0.1),
        ("data", None),
        ("data", ()),
        ("data", torch.zeros(3)),
        ("data", (torch.zeros(3),)),
        ("data", (torch.zeros(3), torch.zeros(2))),
        ("data", (torch.zeros(3), torch.tensor(1.0))),
        ("data", (np.array(["a", "b"]), np.zeros(2))),
        ("data", (np.zeros(3)[::-1], np.zeros(3))),
        ("data", [torch.zeros(3), torch.zeros(3)]),
        ("data", (torch.zeros(0, 3), torch.zeros(0, 1))),
        ("data", []),
        ("data", {"x": torch.zeros(3)}),
        ("data", "digits"),
        ("data", iter([])),
        ("data", (sample for sample in [1, 2])),
        ("data", {1, 2}),
        ("data", Endless()),
        ("test", (torch.zeros(3),)),
        ("test", ()),
        ("test", Stream()),
    ],
)
def test_a_bad_argument_is_refused_by_name(argument, value):
    with pytest.raises(ConfigurationError) as caught:
        a_task(**{argument: value})
    assert caught.value.argument == argument
    assert caught.value.remedy


def test_a_metric_needs_test_data():
    with refused("test", None):
        a_task(metric="accuracy")


def test_a_target_needs_a_metric():
    with refused("metric", None):
        a_task(target=0.9, test=(torch.zeros(1), torch.zeros(1)))


@pytest.mark.parametrize("target", [float("nan"), True, "0.9"])
def test_a_target_is_a_finite_number(target):
    with refused("target"):
        a_task(target=target, metric="accuracy", test=(torch.zeros(1), torch.zeros(1)))


def test_an_unknown_metric_is_refused_with_the_nearest_name():
    with unknown("metric", "acuracy", nearest="accuracy"):
        a_task(metric="acuracy", test=(torch.zeros(1), torch.zeros(1)))


def test_a_metric_that_is_neither_name_nor_callable_is_refused():
    with refused("metric", 3):
        a_task(metric=3, test=(torch.zeros(1), torch.zeros(1)))


@pytest.mark.parametrize("better", ["up", "Higher", True, 1])
def test_a_metric_is_better_higher_or_lower(better):
    with refused("better", better, bound=has("higher", "lower")):
        a_task(metric="accuracy", better=better, test=(torch.zeros(1), torch.zeros(1)))


def test_which_way_is_better_needs_a_metric():
    with refused("metric", None):
        a_task(better="lower")


@pytest.mark.parametrize("argument", ["loss", "metric"])
@pytest.mark.parametrize("function", [lambda outputs: 0.0, lambda outputs, targets, weights: 0.0])
def test_loss_and_metric_take_outputs_and_targets(argument, function):
    test = (torch.zeros(1), torch.zeros(1))
    with refused(argument, function):
        a_task(**{argument: function, "test": test})


@pytest.mark.parametrize(
    "loss", [max, torch.nn.MSELoss(), torch.nn.functional.mse_loss, lambda *given: 0.0, lambda a, b, c=1: 0.0]
)
def test_what_may_be_called_with_two_arguments_is_a_loss(loss):
    assert a_task(loss=loss).loss is loss


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(2, 3), "of shape (2, 3) and torch.float32"),
        ({"a": 1, "b": 2}, "of type dict with a, b"),
        (3, "of type int"),
    ],
)
def test_a_value_is_told_in_a_few_words(value, words):
    assert look_of(value) == words
