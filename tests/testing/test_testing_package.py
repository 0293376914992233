import subprocess
import sys

import pytest
from refusals import raised

import paceline.testing


def python(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_ranks_load_the_tasks_without_pytest():
    done = python("import sys, paceline.testing.tasks, paceline.testing.checks; print(*sys.modules)")
    assert "paceline.testing.tasks" in done.stdout.split()
    assert "pytest" not in done.stdout.split()


def test_without_pytest_the_error_says_how_to_get_it():
    done = python("import sys; sys.modules['pytest'] = None; from paceline.testing import StrategySuite")
    assert "ImportError: paceline.testing needs pytest: pip install 'paceline[testing]'" in done.stderr


def test_an_unknown_name_is_an_attribute_error():
    with raised(AttributeError, "paceline.testing", "nonsense"):
        _ = paceline.testing.nonsense
