"""A strategy in a package that is not of this tree: trained, listed, and put to the suite."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from outside import install
from processes import PATIENCE_S
from refusals import has, refused

import paceline as pl
from paceline.testing import StrategySuite

MODULE = '''
from dataclasses import dataclass
from paceline.strategies.all_reduce import AllReduce
from paceline.strategies.single import Single

@dataclass(frozen=True, kw_only=True)
class Mine(AllReduce):
    """All-reduce with another default."""
    algorithm: str = "ring"
    k: int = 1

@dataclass(frozen=True, kw_only=True)
class Wrong(Mine):
    """Forgets to sum the gradients."""
    async def worker(self, ctx):
        await Single().worker(ctx)
'''

TRAINS = """
from dataclasses import dataclass
import paceline as pl
from paceline.testing.tasks import make_task
from paceline.testing.worlds import WORLDS
from paceline.strategies.all_reduce import AllReduce

@dataclass(frozen=True, kw_only=True, slots=True)
class Here(AllReduce):
    algorithm: str = "ring"

pl.register("here", Here)  # a class of this script, which no other process can import
for spec in ("mine:k=2", "here"):
    for world in WORLDS.values():
        print(pl.train(make_task(), spec, world(2), steps=2).loss)
"""

TESTS = """
from dataclasses import dataclass
import paceline as pl
from paceline.strategies.all_reduce import AllReduce
from paceline.testing import StrategySuite

@dataclass(frozen=True, kw_only=True)
class Here(AllReduce):
    algorithm: str = "ring"

pl.register("here", Here)

class TestHere(StrategySuite):
    spec = "here"

class TestMine(StrategySuite):
    spec = "mine:k=2"

class TestWrong(StrategySuite):
    spec = "wrong"
"""

IN_PROCESSES = "test_every_task_in_processes[2-batch-not-divisible-momentum]"
FEW = [
    "test_every_task_in_simulation[plain-1]",
    "test_every_task_in_simulation[tied-weights-3]",
    IN_PROCESSES,
    "test_batch_norm[simulated-3]",
    "test_both_worlds_clip_alike",
    "test_the_same_seed_gives_the_same_course",
    "test_another_seed_gives_another_course",
    "test_the_history_adds_up[simulated]",
]
"""One case of each kind."""


pytestmark = pytest.mark.xdist_group("outside")  # one process of pytest makes what the tests share


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("outside")
    entry_points = {"mine": "outside_of_the_tree:Mine", "wrong": "outside_of_the_tree:Wrong"}
    install(made / "installed", entry_points, outside_of_the_tree=MODULE)
    (made / "test_mine.py").write_text(TESTS)
    return made


def python(folder, *words):
    """Python where that package and this one are installed, and this tree's tests are not."""
    path = os.pathsep.join([str(folder / "installed"), str(Path(pl.__file__).parents[1])])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def outcomes(folder):
    """Return the result of each case of a suite."""
    cases = [f"test_mine.py::{suite}::{case}" for suite in ("TestMine", "TestWrong") for case in FEW]
    cases.append(f"test_mine.py::TestHere::{IN_PROCESSES}")
    # In this mode, and with -P, no other process can import the test file.
    options = ("-v", "-p", "no:cacheprovider", "--import-mode=importlib")
    done = python(folder, "-P", "-m", "pytest", *options, *cases)
    found = re.findall(r"^test_mine\.py::(\w+)::(\S+) (\w+)", done.stdout, re.MULTILINE)
    assert len(found) == len(cases), done.stdout + done.stderr
    return lambda suite, outcome: {case for name, case, became in found if (name, became) == (suite, outcome)}


@pytest.mark.slow
def test_a_strategy_of_another_package_trains_in_both_worlds(folder):
    done = python(folder, "-c", TRAINS)
    losses = done.stdout.split()
    assert len(losses) == 4, done.stderr
    assert len(set(losses)) == 1


def test_a_strategy_of_another_package_is_listed(folder):
    done = python(folder, "-m", "paceline", "strategies")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("  mine "))
    assert "All-reduce with another default." in line
    page = python(folder, "-m", "paceline", "strategies", "mine")
    assert "k=1" in page.stdout


@pytest.mark.slow
def test_a_right_strategy_of_another_package_passes_the_suite(outcomes):
    assert outcomes("TestMine", "PASSED") == set(FEW)


@pytest.mark.slow
def test_a_strategy_of_the_test_file_itself_passes_in_processes(outcomes):
    assert outcomes("TestHere", "PASSED") == {IN_PROCESSES}


@pytest.mark.slow
def test_a_wrong_strategy_of_another_package_fails_the_suite(outcomes):
    """Alone its worker is right, and it takes the same course each time: the rest is found out."""
    assert outcomes("TestWrong", "FAILED") == {
        "test_every_task_in_simulation[tied-weights-3]",
        IN_PROCESSES,
        "test_batch_norm[simulated-3]",
        "test_the_history_adds_up[simulated]",
    }


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({}, refused("TestMine.spec", None)),
        ({"spec": ""}, refused("TestMine.spec", "")),
        (
            {"spec": "mine", "reproducible": False},
            refused("TestMine.synchronous", True),
        ),
        (
            {"spec": "mine", "fewest_workers": 4},
            refused("TestMine.fewest_workers", 4, bound=has(1, 2, 3)),
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, refusal):
    with refusal:
        type("TestMine", (StrategySuite,), settings)
