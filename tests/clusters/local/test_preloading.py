"""Modules that the fork server imports for its workers."""

import os
import sys
import textwrap
import threading
import uuid
from pathlib import Path

import cloudpickle
import pytest
from processes import fork_servers
from refusals import raised
from tasks import a_task

import paceline as pl
from paceline.clusters.local.forkserver import ForkServer
from paceline.clusters.local.preloading import THREADS_VARIABLE, adopt_environment, installed_modules
from paceline.errors import WorkerError


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module: one that is installed, or the user's own. Each has a name of its own, for servers remember."""
    mark = uuid.uuid4().hex[:8]
    for folder in ("site-packages", "user"):
        (tmp_path / folder).mkdir()
        monkeypatch.syspath_prepend(tmp_path / folder)

    def write_module(name, source, *, installed=False):
        name = f"{name}_{mark}"
        folder = tmp_path / ("site-packages" if installed else "user")
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
        return name

    yield write_module
    for name in [name for name in sys.modules if name.endswith(mark)]:
        del sys.modules[name]


@pytest.fixture
def heavy(tmp_path, write):
    """A module that records the processes that import it, and a function that returns them."""
    notes = tmp_path / "imports"
    source = f"import os\nopen({str(notes)!r}, 'a').write(f'{{os.getpid()}}\\n')\nVALUE = 7\n"
    name = write("heavy", source, installed=True)
    return name, lambda: [int(line) for line in notes.read_text().split()]


def programs(write, heavy, more=""):
    """A module of the user's that needs the heavy one."""
    source = f"import {heavy}\n{more}\nasync def program(ctx):\n    return {heavy}.VALUE\n"
    return __import__(write("programs", source))


def run(module):
    return pl.run_program(module.program, pl.Local(workers=2)).results


def test_a_package_that_the_tasks_file_imports_is_imported_by_the_server_alone(write, heavy):
    name, importers = heavy
    module = programs(write, name)
    for _ in range(2):
        assert run(module) == [7, 7]
    assert importers()[0] == os.getpid()
    assert len(importers()) == 2
    assert importers()[1] in fork_servers()


def test_what_files_of_files_import_counts_too(write, heavy):
    name, _ = heavy
    between = write("between", f"from {name} import VALUE\nimport {name} as more")
    module = __import__(
        write("outer", f"import {between}\nasync def program(ctx):\n    return {between}.VALUE\n")
    )
    assert name in installed_modules(cloudpickle.dumps(module.program))


def test_what_a_function_by_value_mentions_counts_and_what_its_file_imports_besides_does_not(heavy):
    name, _ = heavy
    needed = __import__(name)

    async def program(ctx):
        return needed.VALUE

    found = installed_modules(cloudpickle.dumps(program))
    assert name in found
    assert "pytest" not in found


def test_the_users_own_modules_are_imported_anew_by_every_run(write, heavy):
    """The user's modules may be edited between two runs."""
    module = programs(write, heavy[0], more="VALUE = 1")
    assert module.__name__ not in installed_modules(cloudpickle.dumps(module.program))


def test_a_package_that_starts_threads_is_left_to_the_workers(tmp_path, write):
    notes = tmp_path / "imports"
    source = f"""
        import os, threading
        open({str(notes)!r}, "a").write(f"{{os.getpid()}}\\n")
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        VALUE = 7
    """
    module = programs(write, write("threads", source, installed=True))
    for _ in range(2):
        assert run(module) == [7, 7]
    driver, tried, *workers = (int(line) for line in notes.read_text().split())
    assert driver == os.getpid()
    assert len(set(workers)) == 4, "each imports it for itself"
    (server,) = fork_servers()
    assert server not in (tried, *workers)


def test_a_server_that_is_replaced_lives_as_long_as_its_workers(write):
    threads = write(
        "threads",
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        installed=True,
    )
    module = programs(write, threads, more=f"{threads}.VALUE = 7")
    others = []

    def run_another(progress):
        if not others:
            thread = threading.Thread(target=lambda: others.append(run(module)))
            thread.start()
            thread.join()
            others.append(len(fork_servers()))

    run_of_first = pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=200, progress=run_another)
    assert others == [[7, 7], 2]
    assert run_of_first.steps == 200
    assert len(fork_servers()) == 1


def test_a_package_that_cannot_be_imported_elsewhere_fails_in_the_worker(write):
    source = f"import os\nif os.getpid() != {os.getpid()}:\n    raise RuntimeError('only here')\nVALUE = 7\n"
    module = programs(write, write("homely", source, installed=True))
    with raised(WorkerError, cause="RuntimeError: only here"):
        run(module)
    assert Path(module.__file__).exists()


async def imported(ctx):
    return sorted(sys.modules)


@pytest.mark.parametrize(
    ("strategy", "module"),
    [("map-reduce", "paceline.strategies.map_reduce"), ("pipeline", "torch.export._trace")],
)
def test_what_ranks_of_a_strategy_import_is_there_when_a_later_rank_is_forked(strategy, module):
    """A program without a strategy returns the environment of its process."""
    pl.train(a_task(), strategy, pl.Local(workers=2), steps=1)
    (modules,) = pl.run_program(imported, pl.Local(workers=1)).results
    assert module in modules


async def environment_of_a_rank(ctx):
    return {name: os.environ.get(name) for name in ("PACELINE_TEST_GONE", "PACELINE_TEST_CHANGED")}


def test_a_variable_that_the_driver_deletes_is_gone_in_the_workers_of_later_runs(monkeypatch):
    monkeypatch.setenv("PACELINE_TEST_CHANGED", "before")
    monkeypatch.setenv("PACELINE_TEST_GONE", "before")
    if ForkServer._current is not None:
        ForkServer._current._end()  # the next server starts with both variables
    first = pl.run_program(environment_of_a_rank, pl.Local(workers=2)).results
    monkeypatch.setenv("PACELINE_TEST_CHANGED", "after")
    monkeypatch.delenv("PACELINE_TEST_GONE")
    later = pl.run_program(environment_of_a_rank, pl.Local(workers=2)).results
    assert first == [{"PACELINE_TEST_GONE": "before", "PACELINE_TEST_CHANGED": "before"}] * 2
    assert later == [{"PACELINE_TEST_GONE": None, "PACELINE_TEST_CHANGED": "after"}] * 2


def test_the_fork_server_keeps_its_own_number_of_threads(monkeypatch):
    monkeypatch.setenv(THREADS_VARIABLE, "1")
    adopt_environment({name: value for name, value in os.environ.items() if name != THREADS_VARIABLE})
    assert os.environ[THREADS_VARIABLE] == "1"
