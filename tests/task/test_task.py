import copy
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import PATIENCE_S
from refusals import has, raised, refused
from tasks import samples
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import paceline
from paceline.errors import TaskError
from paceline.task.metrics import accuracy
from paceline.task.parameters import Parameters
from paceline.task.task import Task

PACKAGE = Path(paceline.__file__).parent


class Squares(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.tensor([float(index**2)])


class BodyAndHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.body(x))


def sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def a_task(**changes):
    given = {
        "model": partial(nn.Linear, 3, 1),
        "data": (torch.zeros(6, 3), torch.zeros(6, 1)),
        "loss": nn.functional.mse_loss,
        "optimizer": sgd,
        "batch_size": 2,
    }
    return Task(**(given | changes))


def test_arguments_are_keywords_only():
    with pytest.raises(TypeError):
        Task(nn.Linear(3, 1))


def test_the_repr_of_a_task_leaves_its_samples_out():
    assert "tensor(" not in repr(a_task())


# The model


def test_a_model_factory_gives_the_same_model_for_the_same_seed_and_leaves_chance_alone():
    task = a_task()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two, other = task.build_model(1), task.build_model(1), task.build_model(2)
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one.weight, two.weight)
    assert not torch.equal(one.weight, other.weight)


def test_a_model_instance_is_copied():
    model = nn.Linear(3, 1)
    built = a_task(model=model).build_model(0)
    assert built is not model
    assert torch.equal(built.weight, model.weight)
    assert built.weight.data_ptr() != model.weight.data_ptr()


def test_a_model_class_is_a_factory():
    assert isinstance(a_task(model=BodyAndHead).build_model(0), BodyAndHead)


def test_a_factory_that_fails_shows_the_users_traceback_and_none_of_our_frames():
    def broken():
        raise RuntimeError("no such layer")

    with pytest.raises(TaskError) as caught:
        a_task(model=broken).build_model(0)
    message = str(caught.value)
    assert "no such layer" in message
    assert "in broken" in message
    assert str(PACKAGE) not in message


@pytest.mark.parametrize("made", [None, nn.ReLU(), nn.LazyLinear(2)])
def test_a_factory_must_make_a_module_that_can_learn(made):
    with refused("model"):
        a_task(model=lambda: made).build_model(0)


# The data


def test_tensors_come_back_as_they_are():
    x, y = torch.zeros(4, 3), torch.zeros(4, 1)
    assert a_task(data=(x, y)).build_data()[0] is x


def test_a_tensor_dataset_is_unwrapped_for_the_fast_path():
    x, y = torch.zeros(4, 3), torch.zeros(4, 1)
    assert a_task(data=TensorDataset(x, y)).build_data()[1] is y


@pytest.mark.parametrize("data", [Squares(), Squares, partial(Squares)])
def test_a_dataset_may_be_given_or_made(data):
    assert len(a_task(data=data).build_data()) == 5


def test_a_list_of_samples_is_a_dataset():
    data = [(torch.zeros(3), torch.zeros(1))]
    assert a_task(data=data).build_data() is data


def test_a_random_data_factory_gives_every_rank_the_same_samples():
    def samples():
        noise = torch.tensor(np.random.rand(4, 1))
        return torch.randn(4, 3), noise

    task = a_task(data=samples)
    ranks = [task.build_data() for _ in range(2)]
    assert torch.equal(ranks[0][0], ranks[1][0])
    assert torch.equal(ranks[0][1], ranks[1][1])


def test_a_data_factory_that_makes_nothing_useful_is_refused():
    with refused("data", None):
        a_task(data=lambda: None).build_data()


def test_a_data_factory_that_fails_is_a_task_error():
    with raised(TaskError, failure=has("test")):
        a_task(test=lambda: 1 / 0, metric="accuracy").build_test()


def test_a_task_without_test_data_builds_none():
    assert a_task().build_test() is None


# The optimizer


@pytest.mark.parametrize(
    "optimizer",
    [
        sgd,
        torch.optim.Adam,
        partial(torch.optim.Adam, lr=1e-3),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model: torch.optim.SGD(model.named_parameters(), lr=0.1),
    ],
)
def test_an_optimizer_is_made_of_the_parameters_or_of_the_model(optimizer):
    model = BodyAndHead()
    built = a_task(optimizer=optimizer).build_optimizer(model)
    assert [id(p) for p in built.param_groups[0]["params"]] == [id(p) for p in model.parameters()]


def test_an_optimizer_may_have_groups_of_the_models_parts():
    def grouped(m):
        groups = [{"params": m.body.parameters()}, {"params": m.head.parameters(), "lr": 0.01}]
        return torch.optim.SGD(groups, lr=0.1)

    built = a_task(optimizer=grouped).build_optimizer(BodyAndHead())
    assert [group["lr"] for group in built.param_groups] == [0.1, 0.01]


def test_frozen_parameters_are_not_offered():
    model = BodyAndHead()
    model.body.requires_grad_(False)
    assert len(Parameters(model)) == 2


def test_parameters_can_be_copied():
    assert len(copy.copy(Parameters(BodyAndHead()))) == 4


def test_lbfgs_is_refused_because_its_step_needs_a_closure():
    with refused("optimizer", "LBFGS"):
        a_task(optimizer=torch.optim.LBFGS).build_optimizer(nn.Linear(3, 1))


def test_an_optimizer_of_other_parameters_is_refused():
    other = nn.Linear(3, 1)
    with refused("optimizer", has(2)):
        a_task(optimizer=lambda _: sgd(other.parameters())).build_optimizer(nn.Linear(3, 1))


def test_an_optimizer_that_is_not_returned_is_refused():
    with refused("optimizer", None, bound=has("torch.optim.Optimizer")):
        a_task(optimizer=lambda params: None).build_optimizer(nn.Linear(3, 1))


def test_an_optimizer_that_fails_is_a_task_error():
    with raised(TaskError, failure=has("optimizer"), cause=has("Invalid learning rate")):
        a_task(optimizer=partial(torch.optim.SGD, lr=-1)).build_optimizer(nn.Linear(3, 1))


def test_a_schedule_is_made_of_the_optimizer():
    task = a_task(schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5))
    optimizer = task.build_optimizer(nn.Linear(3, 1))
    assert task.build_schedule(optimizer).get_last_lr() == [0.1]


def test_a_schedule_that_needs_a_metric_is_refused_where_there_is_none():
    task = a_task(schedule=torch.optim.lr_scheduler.ReduceLROnPlateau)
    with refused("schedule", "ReduceLROnPlateau"):
        task.build_schedule(task.build_optimizer(nn.Linear(3, 1)))


def test_a_task_without_a_schedule_builds_none():
    assert a_task().build_schedule(None) is None


# The metric


def test_a_task_without_a_metric_has_no_metrics():
    assert a_task().metrics() == {}


def test_metrics_have_names_and_the_order_in_which_they_are_given():
    given = {"right": "accuracy", "other": accuracy}
    assert list(a_task(metric=given, test=samples()).metrics().items()) == list(given.items())
    assert a_task(metric="accuracy", test=samples()).metrics() == {"metric": "accuracy"}


@pytest.mark.parametrize(
    ("words", "value", "reached"),
    [
        ({"metric": "accuracy"}, 0.6, True),
        ({"metric": "accuracy"}, 0.4, False),
        ({"metric": "loss"}, 0.6, False),
        ({"metric": "loss"}, 0.4, True),
        ({"metric": "loss", "better": "higher"}, 0.6, True),
        ({"metric": lambda outputs, targets: 0.0, "better": "lower"}, 0.4, True),
        ({"metric": "accuracy"}, None, False),
    ],
)
def test_a_target_is_reached_from_the_side_that_is_worse(words, value, reached):
    task = a_task(test=(torch.zeros(4), torch.zeros(4)), target=0.5, **words)
    assert task.reaches_target(value) is reached


def test_no_target_is_never_reached():
    assert not a_task().reaches_target(1.0)


def test_importing_the_module_does_not_import_torch():
    program = "import sys, paceline.task.task; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_S, check=False).returncode == 0
