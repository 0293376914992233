import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch
from processes import PATIENCE_S
from refusals import has, raised, refused, unknown
from tasks import simulated

import paceline
import paceline as pl
from paceline.errors import TaskError
from paceline.task.files import load_task

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGE = Path(paceline.__file__).parent

HEADER = """
import torch
from torch import nn
from paceline.task.task import Task
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
    ("body", "suffix", "refusal"),
    [
        ("", "", refused("task")),
        ("task = 3", "", refused("task")),
        ("one = made()\ntwo = made()", "", refused("task", "one, two")),
        (
            "one = made()\ntwo = made()",
            ":tow",
            unknown(has("some_task.py"), "tow", nearest="two", valid=("one", "two")),
        ),
        ("size = 3", ":size", refused("size", 3)),
        ("def task(): return 3", "", refused(has("some_task.py:task"), 3)),
    ],
)
def test_a_file_without_one_clear_task_is_refused(written, body, suffix, refusal):
    with refusal:
        load_task(written(body) + suffix)


@pytest.mark.parametrize("spec", ["nowhere.py", "nowhere.py:task", "", ":", "examples", "README.md"])
def test_a_missing_file_is_refused(spec):
    with refused("task"):
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
    assert str(PACKAGE) not in text


def test_a_broken_file_leaves_no_module_behind(written):
    before = set(sys.modules)
    with pytest.raises(TaskError):
        load_task(written("1 / 0"))
    assert not [name for name in set(sys.modules) - before if name.startswith("paceline_task_")]


def test_a_function_that_fails_to_make_the_task_is_a_task_error(written):
    with raised(TaskError, cause=has("ZeroDivisionError")):
        load_task(written("def task(): return 1 / 0"))


def test_an_argument_refused_inside_a_file_is_told_with_its_line(written):
    with refused("batch_size", 0) as caught:
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


@pytest.mark.parametrize(
    "name", [pytest.param("digits", marks=pytest.mark.slow), "linear_regression", "char_transformer"]
)
def test_every_example_is_a_task(name):
    task = load_task(EXAMPLES / f"{name}.py")
    inputs, target = (part[:2] for part in task.build_data())
    assert torch.isfinite(task.loss(task.build_model(0)(inputs), target))


def test_the_example_with_words_of_different_lengths_learns():
    task = load_task(EXAMPLES / "variable_lengths.py")
    run = pl.train(task, "all-reduce", simulated(3), steps=25)
    assert run.history[-1].loss < 0.5 * run.history[0].loss
