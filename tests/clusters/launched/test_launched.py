"""Processes that torchrun, or any launcher that sets its words, has started train together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import PATIENCE_S

import paceline as pl
from paceline.clusters.job import Job
from paceline.errors import ConfigurationError, PacelineError
from paceline.training import _roles

TASK = """
import os, signal
import torch
import paceline as pl

def data():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(60, 6, dtype=torch.float64, generator=generator)
    return inputs, inputs @ torch.arange(6.0, dtype=torch.float64)

def loss(outputs, targets):
    if "DIES" in os.environ and os.environ["DIES"] == f"{os.environ['RANK']} at {loss.calls}":
        os.kill(os.getpid(), signal.SIGKILL)
    loss.calls += 1
    return torch.nn.functional.mse_loss(outputs.squeeze(-1), targets)
loss.calls = 0

def task():
    return pl.Task(
        model=lambda: torch.nn.Linear(6, 1, dtype=torch.float64),
        data=data,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
        batch_size=12,
    )

def watched():
    # With all that needs the driver in mid-run: a schedule by the metric, and a callback that stops the run.
    return pl.Task(
        model=lambda: torch.nn.Linear(6, 1, dtype=torch.float64),
        data=data,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02),
        batch_size=12,
        test=data,
        metric=lambda outputs, targets: -abs(float(outputs.mean())),
        schedule=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5),
    )

class Watcher:
    wants_state = True
    def __init__(self):
        self.seen = []
    def on_step(self, record):
        self.seen.append(record.step)
    def on_evaluate(self, record, state):
        self.seen.append(list(state))
        return pl.STOP if record.step >= 9 else None
"""

SCRIPT = """
import json, os, sys
import torch
import paceline as pl
from the_task import Watcher, task, watched

if __name__ == "__main__":
    where, strategies = sys.argv[1], sys.argv[2:]
    rank = pl.Launched().place.rank
    for number, strategy in enumerate(strategies):
        watcher = Watcher()
        how = {"steps": 8}
        made = task()
        if strategy.startswith("watched "):
            strategy, made = strategy.split()[1], watched()
            how = {"steps": 30, "evaluate_every": 3, "callbacks": [watcher]}
        try:
            run = pl.train(made, strategy, pl.Launched(deadline_s=20.0, threads=1), **how)
        except pl.PacelineError as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        else:
            said = {
                "parameters": run.parameters.tolist(), "steps": run.steps, "staleness": sum(run.staleness.values()),
                "bytes": run.bytes_sent, "environment": run.environment, "spans": [len(s) for s in run.trace.spans],
                "seen": watcher.seen,
            }
        with open(f"{where}/{number}-{rank}.json", "w") as file:
            json.dump(said, file)
"""

pytestmark = pytest.mark.xdist_group("launched")  # one launch of torchrun for all

SYNCHRONOUS = ("all-reduce:algorithm=ring", "all-reduce", "sync", "local-sgd:period=2", "decentralized")
WATCHED = ("all-reduce:algorithm=ring", "sync")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launched")
    (folder / "the_task.py").write_text(TASK)
    (folder / "train.py").write_text(SCRIPT)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def said(folder: Path, number: int, ranks: int) -> list[dict[str, object]]:
    return [json.loads((folder / f"{number}-{rank}.json").read_text()) for rank in range(ranks)]


# A launcher of one run after the other. It imports torch and its compiler once, and forks.
LAUNCHER = """
import json, os, runpy, sys
import paceline.training, torch, torch._dynamo
def start(rank, port, strategy, dies):
    pid = os.fork()
    if pid == 0:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_PORT": port, "DIES": dies}
        sys.path.insert(0, os.getcwd())
        sys.argv = ["train.py", strategy, strategy]
        runpy.run_path("train.py", run_name="__main__")
        sys.exit()
    return pid
for words in json.loads(sys.argv[1]):
    os.mkdir(words[1])
    ranks = [start(rank, *words) for rank in range(3)]
    print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks], flush=True)
"""
DYING = {"all-reduce:algorithm=ring": "1 at 4", "async": "1 at 0"}


@pytest.fixture(scope="module")
def ends(folder: Path) -> dict[str, list[int]]:
    """How the three processes of each of two runs ended, in both of which one of them dies."""
    runs = [(str(free_port()), strategy, dies) for strategy, dies in DYING.items()]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, json.dumps(runs)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"},
        stdout=subprocess.PIPE,
        timeout=4 * PATIENCE_S,
        check=True,
    )
    return dict(zip(DYING, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module")
def by_torchrun(folder: Path) -> Path:
    """A run of each strategy, by 3 processes of torchrun."""
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    words = [torchrun, "--nproc-per-node", "3", "--master-port", str(free_port()), "train.py", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    strategies = [*SYNCHRONOUS, "async", *(f"watched {strategy}" for strategy in WATCHED)]
    subprocess.run([*words, *strategies], cwd=folder, env=env, check=True, timeout=4 * PATIENCE_S)
    return folder


def the_task(name: str = "task") -> pl.Task:
    names: dict[str, object] = {}
    exec(TASK, names)
    return names[name]()  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("number", range(len(SYNCHRONOUS)), ids=SYNCHRONOUS)
def test_launched_processes_give_the_weights_of_local_ones_bit_for_bit(by_torchrun: Path, number: int):
    strategy = SYNCHRONOUS[number]
    workers = 2 if strategy == "sync" else 3  # one of the three is the server
    expected = pl.train(the_task(), strategy, pl.Local(workers=workers, threads=1), steps=8)
    runs = said(by_torchrun, number, ranks=3)
    for run in runs:
        assert run["steps"] == 8
        assert torch.equal(torch.tensor(run["parameters"], dtype=torch.float64), expected.parameters)
        assert run["bytes"] == expected.bytes_sent


@pytest.mark.parametrize("number", range(len(WATCHED)), ids=WATCHED)
def test_callbacks_of_the_first_process_see_and_stop_the_run_of_all(by_torchrun: Path, number: int):
    strategy, watcher = WATCHED[number], the_task("Watcher")
    workers = 2 if strategy == "sync" else 3
    here = pl.Local(workers=workers, threads=1)
    how = {"steps": 30, "evaluate_every": 3, "callbacks": [watcher]}
    expected = pl.train(the_task("watched"), strategy, here, **how)  # type: ignore[arg-type]
    assert expected.steps == 10
    runs = said(by_torchrun, len(SYNCHRONOUS) + 1 + number, ranks=3)
    for run in runs:
        assert torch.equal(torch.tensor(run["parameters"], dtype=torch.float64), expected.parameters)
    assert [run["seen"] for run in runs] == [watcher.seen, [], []]  # type: ignore[attr-defined]
    assert watcher.seen[:4] == [1, 2, 3, ["weight", "bias"]]  # type: ignore[attr-defined]


def test_every_process_gets_the_same_run_with_the_trace_of_all(by_torchrun: Path):
    runs = said(by_torchrun, len(SYNCHRONOUS), ranks=3)
    assert runs[0] == runs[1] | {"environment": runs[0]["environment"]}
    assert runs[0]["staleness"] == 8
    assert len(runs[2]["spans"]) == 3  # type: ignore[arg-type]
    assert all(runs[2]["spans"])  # type: ignore[call-overload]


def test_the_run_says_where_its_ranks_were_and_how_they_talked(by_torchrun: Path):
    environment = said(by_torchrun, 0, ranks=3)[1]["environment"]
    assert environment["hosts"] == f"{socket.gethostname()}: 0-2"  # type: ignore[index]
    assert environment["threads a rank"] == "1"  # type: ignore[index]
    assert environment["link"] == "TCP, not encrypted"  # type: ignore[index]


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_run_of_the_others_with_its_name(
    folder: Path, ends: dict[str, list[int]]
):
    strategy = "all-reduce:algorithm=ring"
    assert ends[strategy] == [0, -9, 0]
    for rank in (0, 2):
        error = json.loads((folder / strategy / f"0-{rank}.json").read_text())["error"]
        assert error.startswith("PeerLost: rank 1 is lost (on host ")


@pytest.mark.slow
def test_a_strategy_that_can_spare_a_worker_goes_on_without_it(folder: Path, ends: dict[str, list[int]]):
    assert ends["async"] == [0, -9, 0]
    assert json.loads((folder / "async" / "0-0.json").read_text())["steps"] == 8


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch):
    _pretend(monkeypatch, 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(PacelineError, match=rf"127\.0\.0\.1:{port}.*set MASTER_PORT to a free port"):
            pl.train(the_task(), "all-reduce", pl.Launched(), steps=1)


@pytest.mark.slow
def test_once_all_have_met_nobody_else_is_let_in_at_the_store(folder: Path):
    port = free_port()
    knock = f"""
import os, socket, sys
import train_once
if os.environ["RANK"] != "0":
    sys.exit(0)  # the other one serves the store
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=1.0).close()
except TimeoutError:
    sys.exit(0)
sys.exit("a stranger was let in")
"""
    (folder / "knock.py").write_text(knock)
    (folder / "train_once.py").write_text(
        "import paceline as pl\nfrom the_task import task\n"
        "runs = [pl.train(task(), 'all-reduce', pl.Launched(), steps=2) for _ in range(2)]\n"
    )
    words = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "knock.py"], cwd=folder, env={**os.environ, **words, "RANK": str(rank)}
        )
        for rank in range(2)
    ]
    assert [process.wait(4 * PATIENCE_S) for process in processes] == [0, 0]


@pytest.mark.parametrize(("strategy", "processes", "workers"), [("all-reduce", 4, 4), ("async", 4, 3)])
def test_a_strategys_servers_come_out_of_the_processes(
    strategy: str, processes: int, workers: int, monkeypatch: pytest.MonkeyPatch
):
    _pretend(monkeypatch, processes)
    from paceline.strategies import parse

    chosen = parse(strategy)
    job = Job(strategy=chosen, roles=_roles(chosen, pl.Launched()), seed=0)
    assert (job.ranks, job.workers) == (processes, workers)


def test_too_few_processes_for_a_strategy_are_refused(monkeypatch: pytest.MonkeyPatch):
    _pretend(monkeypatch, 2)
    with pytest.raises(ConfigurationError, match="must be enough for sync:servers=2, which needs 3"):
        pl.train(the_task(), "sync:servers=2", pl.Launched(), steps=1)


def test_a_name_that_does_not_resolve_is_named(monkeypatch: pytest.MonkeyPatch):
    _pretend(monkeypatch, 1)
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    with pytest.raises(ConfigurationError, match="no-such-host.invalid"):
        pl.train(the_task(), "all-reduce", pl.Launched(), steps=1)


def test_outside_of_a_launcher_the_words_are_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigurationError, match="torchrun"):
        pl.Launched()


def _pretend(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
