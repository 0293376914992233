import copy
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from processes import PATIENCE_S
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from paceline.errors import ConfigurationError, TaskError, UnknownNameError
from paceline.task import Parameters, Task, accuracy, load_task, user_traceback

EXAMPLES = Path(__file__).parents[1] / "examples"


class Squares(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.tensor([float(index**2)])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


class Endless(Dataset):
    def __getitem__(self, index):
        return torch.zeros(1), torch.zeros(1)


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


# What is refused when a task is made


def test_arguments_are_keywords_only():
    with pytest.raises(TypeError):
        Task(nn.Linear(3, 1))


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
        ("loss", None),
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
    with pytest.raises(ConfigurationError, match="metric must be a name or a callable"):
        a_task(metric=3, test=(torch.zeros(1), torch.zeros(1)))


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
    assert f"paceline{os.sep}task.py" not in message


@pytest.mark.parametrize("made", [None, nn.ReLU(), nn.LazyLinear(2)])
def test_a_factory_must_make_a_module_that_can_learn(made):
    with pytest.raises(ConfigurationError, match="model must"):
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
    with pytest.raises(ConfigurationError, match="data must"):
        a_task(data=lambda: None).build_data()


def test_a_data_factory_that_fails_is_a_task_error():
    with pytest.raises(TaskError, match="the test could not be built"):
        a_task(test=lambda: 1 / 0, metric=accuracy).build_test()


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
    with pytest.raises(ConfigurationError, match="without a closure, but got 'LBFGS'"):
        a_task(optimizer=torch.optim.LBFGS).build_optimizer(nn.Linear(3, 1))


def test_an_optimizer_of_other_parameters_is_refused():
    other = nn.Linear(3, 1)
    with pytest.raises(ConfigurationError, match="this model's parameters"):
        a_task(optimizer=lambda _: sgd(other.parameters())).build_optimizer(nn.Linear(3, 1))


def test_an_optimizer_that_is_not_returned_is_refused():
    with pytest.raises(ConfigurationError, match=r"must make a torch\.optim\.Optimizer"):
        a_task(optimizer=lambda params: None).build_optimizer(nn.Linear(3, 1))


def test_an_optimizer_that_fails_is_a_task_error():
    with pytest.raises(TaskError, match="Invalid learning rate"):
        a_task(optimizer=partial(torch.optim.SGD, lr=-1)).build_optimizer(nn.Linear(3, 1))


def test_a_schedule_is_made_of_the_optimizer():
    task = a_task(schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5))
    optimizer = task.build_optimizer(nn.Linear(3, 1))
    assert task.build_schedule(optimizer).get_last_lr() == [0.1]


def test_a_schedule_that_needs_a_metric_is_refused():
    task = a_task(schedule=torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(ConfigurationError, match="ReduceLROnPlateau"):
        task.build_schedule(task.build_optimizer(nn.Linear(3, 1)))


def test_a_task_without_a_schedule_builds_none():
    assert a_task().build_schedule(None) is None


# The metric


def test_accuracy_is_the_share_of_largest_outputs_that_the_targets_name():
    outputs = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    task = a_task(metric="accuracy", test=(torch.zeros(4), torch.zeros(4)))
    assert task.metric_function()(outputs, torch.tensor([1, 0, 0, 1])) == 0.75


@pytest.mark.parametrize(("outputs", "targets"), [((4, 1), (4,)), ((4, 3), (4, 1)), ((4,), (4,)), ((), ())])
def test_accuracy_refuses_shapes_that_would_broadcast(outputs, targets):
    with pytest.raises(ConfigurationError, match="metric 'accuracy' needs"):
        accuracy(torch.zeros(outputs), torch.zeros(targets))


def test_a_task_without_a_metric_has_no_metric_function():
    assert a_task().metric_function() is None


# Tasks in files

HEADER = """
import torch
from torch import nn
from paceline.task import Task
def made(size=2):
    return Task(model=lambda: nn.Linear(1, 1), data=(torch.zeros(4, 1), torch.zeros(4, 1)),
                loss=nn.functional.mse_loss, optimizer=torch.optim.SGD, batch_size=size)
"""


@pytest.fixture(autouse=True)
def _path_as_before(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def written(tmp_path):
    def write(body, name="some_task.py", header=HEADER):
        path = tmp_path / name
        path.write_text(header + body)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("body", "suffix", "size"),
    [
        ("task = made(3)\nother = made(4)", "", 3),
        ("mine = made(5)", "", 5),
        ("mine = made(5)\nalias = mine", "", 5),
        ("mine = made(5)\ndef task(): return made(6)", "", 5),
        ("def task(): return made(6)", "", 6),
        ("one = made(7)\ntwo = made(8)", ":two", 8),
        ("task = made(3)\ndef another(): return made(9)", ":another", 9),
    ],
)
def test_the_task_of_a_file_is_found(written, body, suffix, size):
    assert load_task(written(body) + suffix).batch_size == size


def test_a_path_object_names_a_file_too(written):
    assert load_task(Path(written("task = made(3)"))).batch_size == 3


@pytest.mark.parametrize(
    ("body", "suffix", "message"),
    [
        ("", "", "task must be in its file"),
        ("task = 3", "", "task must be in its file"),
        ("one = made()\ntwo = made()", "", "must be one in its file, or named, but got 'one, two'"),
        ("one = made()\ntwo = made()", ":tow", "must be one of one, two, but got 'tow'; did you mean 'two'"),
        ("size = 3", ":size", "size must be a Task or make one"),
        ("def task(): return 3", "", "must return a Task, but got 3"),
    ],
)
def test_a_file_without_one_clear_task_is_refused(written, body, suffix, message):
    with pytest.raises(ConfigurationError, match=message):
        load_task(written(body) + suffix)


@pytest.mark.parametrize("spec", ["nowhere.py", "nowhere.py:task", "", ":", "examples", "README.md"])
def test_a_missing_file_is_refused(spec):
    with pytest.raises(ConfigurationError, match="must be a Python file that exists"):
        load_task(spec)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("task = (", "SyntaxError"),
        ("raise KeyError('gone')", "KeyError: 'gone'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_broken_file_shows_the_users_traceback_and_no_frames_of_ours(written, body, message):
    path = written(body)
    with pytest.raises(TaskError) as caught:
        load_task(path)
    text = str(caught.value)
    assert message in text
    assert path in text
    assert "importlib" not in text
    assert f"paceline{os.sep}task.py" not in text


def test_a_broken_file_leaves_no_module_behind(written):
    before = set(sys.modules)
    with pytest.raises(TaskError):
        load_task(written("1 / 0"))
    assert not [name for name in set(sys.modules) - before if name.startswith("paceline_task_")]


def test_a_function_that_fails_to_make_the_task_is_a_task_error(written):
    with pytest.raises(TaskError, match="ZeroDivisionError"):
        load_task(written("def task(): return 1 / 0"))


def test_an_argument_refused_inside_a_file_is_told_with_its_line(written):
    with pytest.raises(ConfigurationError, match="batch_size") as caught:
        load_task(written("\n\ntask = made(0)"))
    assert "some_task.py, line" in caught.value.__notes__[0]


def test_a_file_imports_its_neighbours(written):
    written("SIZE = 11", name="neighbour_of_a_task.py", header="")
    assert load_task(written("import neighbour_of_a_task as n\ntask = made(n.SIZE)")).batch_size == 11


def test_two_files_of_one_name_do_not_mix(written, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = load_task(written("task = made(3)", name="a/train.py"))
    two = load_task(written("task = made(4)", name="b/train.py"))
    assert (one.batch_size, two.batch_size) == (3, 4)


def test_a_task_of_a_file_reaches_a_process_that_cannot_import_the_file(written, tmp_path):
    body = "class Net(nn.Linear):\n    pass\ndef net(): return Net(1, 1)\ntask = Task(model=net, "
    body += "data=(torch.zeros(4, 1), torch.zeros(4, 1)), loss=nn.functional.mse_loss, "
    body += "optimizer=lambda p: torch.optim.SGD(p), batch_size=2)"
    pickled = tmp_path / "task.pickle"
    pickled.write_bytes(cloudpickle.dumps(load_task(written(body))))
    program = f"import pickle; task = pickle.load(open({str(pickled)!r}, 'rb')); print(task.build_model(0))"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert answer.stdout.startswith("Net("), answer.stderr


def test_the_frames_of_a_cause_are_trimmed_too():
    def inner():
        raise KeyError("inner")

    try:
        try:
            inner()
        except KeyError as error:
            raise ValueError("outer") from error
    except ValueError as error:
        text = user_traceback(error)
    assert text.index("KeyError") < text.index("direct cause") < text.index("ValueError: outer")


@pytest.mark.parametrize("name", ["digits", "linear_regression", "char_transformer"])
def test_every_example_is_a_task(name):
    task = load_task(EXAMPLES / f"{name}.py")
    inputs, target = (part[:2] for part in task.build_data())
    assert torch.isfinite(task.loss(task.build_model(0)(inputs), target))


def test_importing_the_module_does_not_import_torch():
    program = "import sys, paceline.task; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_S, check=False).returncode == 0
