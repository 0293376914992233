import numpy as np
import pytest
import torch
from tasks import a_task
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from paceline.errors import ConfigurationError, UnknownNameError
from paceline.task import accuracy


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
        ("data", (np.zeros(3), np.zeros(3))),
        ("data", [torch.zeros(3), torch.zeros(3)]),
        ("data", (torch.zeros(0, 3), torch.zeros(0, 1))),
        ("data", []),
        ("data", {"x": torch.zeros(3)}),
        ("data", "digits"),
        ("data", Stream()),
        ("data", Endless()),
        ("test", (torch.zeros(3),)),
        ("test", ()),
    ],
)
def test_a_bad_argument_is_refused_by_name(argument, value):
    with pytest.raises(ConfigurationError) as caught:
        a_task(**{argument: value})
    assert caught.value.argument == argument
    assert caught.value.remedy


def test_a_metric_needs_test_data():
    with pytest.raises(ConfigurationError, match="test must be given with a metric"):
        a_task(metric="accuracy")


def test_a_target_needs_a_metric():
    with pytest.raises(ConfigurationError, match="metric must be given with a target"):
        a_task(target=0.9, test=(torch.zeros(1), torch.zeros(1)))


@pytest.mark.parametrize("target", [float("nan"), True, "0.9"])
def test_a_target_is_a_finite_number(target):
    with pytest.raises(ConfigurationError, match="target must be a finite number"):
        a_task(target=target, metric=accuracy, test=(torch.zeros(1), torch.zeros(1)))


def test_an_unknown_metric_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownNameError, match="did you mean 'accuracy'"):
        a_task(metric="acuracy", test=(torch.zeros(1), torch.zeros(1)))


def test_a_metric_that_is_neither_name_nor_callable_is_refused():
    with pytest.raises(ConfigurationError, match="metric must be a name, a callable or a metric object"):
        a_task(metric=3, test=(torch.zeros(1), torch.zeros(1)))
