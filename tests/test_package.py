import subprocess
import sys

import pytest
from refusals import raised

import paceline


def modules_after(statement):
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_public_names_are_sorted():
    # Constants are first, as ruff sorts them.
    assert paceline.__all__ == sorted(paceline.__all__, key=lambda name: (not name.isupper(), name))


@pytest.mark.parametrize("name", paceline.__all__)
def test_every_public_name_resolves_and_says_what_it_is(name):
    assert getattr(paceline, name).__doc__
    assert name in dir(paceline)


def test_all_is_complete():
    promised = {"Link", "Local", "PacelineError", "Run", "Simulated", "Task", "load_task", "times", "train"}
    promised |= {"Comparison", "compare", "faults", "register", "STOP", "StopTraining", "callbacks", "codecs"}
    assert promised <= set(paceline.__all__)
    assert set(paceline.__all__) - {"callbacks", "codecs", "collectives", "faults", "models", "optim"} == set(
        paceline._HOMES
    )


def test_a_star_import_gives_the_public_names():
    names = {}
    exec("from paceline import *", names)
    assert set(paceline.__all__) <= set(names)


def test_an_unknown_name_is_an_attribute_error():
    with raised(AttributeError, "paceline", "nonsense"):
        _ = paceline.nonsense


@pytest.mark.parametrize(
    "statement",
    [
        "import paceline",
        "import paceline; paceline.Link, paceline.times, paceline.PacelineError, paceline.Task",
        "from paceline.strategies import STRATEGIES",
        "import paceline.collectives, paceline.schedules.collectives, paceline.trace, paceline.runs.run",
    ],
)
def test_torch_is_imported_late(statement):
    assert "torch" not in modules_after(statement)


@pytest.mark.parametrize(
    "statement", ["from paceline.strategies import parse; parse('sync')", "import paceline.cli"]
)
def test_entry_points_are_looked_at_late(statement):
    assert "importlib.metadata" not in modules_after(statement)


@pytest.mark.slow
def test_training_imports_neither_pages_nor_comparisons():
    program = (
        "import torch, paceline as pl\n"
        "task = pl.Task(model=torch.nn.Linear(2, 1), data=(torch.zeros(4, 2), torch.zeros(4, 1)), batch_size=2,\n"
        "    loss=torch.nn.functional.mse_loss, optimizer=lambda params: torch.optim.SGD(params, lr=0.1))\n"
        "pl.train(task, 'all-reduce', pl.Simulated(workers=2, compute=pl.times.Constant(0.01)), steps=2)\n"
        "pl.train(task, 'all-reduce', pl.Local(workers=2), steps=2)"
    )
    above = (
        "paceline.report",
        "paceline.analysis.comparison",
        "paceline.analysis.diagnosis",
        "paceline.cli",
        "rich",
    )
    assert not [name for name in modules_after(program) if name.startswith(above)]


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert paceline.__version__ == version("paceline")
