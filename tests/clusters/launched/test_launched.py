"""Processes started by torchrun, or by another launcher that sets the same variables, train together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from clusters.launched.scripts import free_port, said, the_task, write_scripts
from processes import PATIENCE_S
from refusals import has, refused

import paceline as pl
from paceline.clusters.base.job import Job
from paceline.clusters.launched.run import _Middle
from paceline.training import roles_of

pytestmark = [
    pytest.mark.xdist_group("launched"),  # one launch for all
    pytest.mark.timeout(180),
]

AUTOCAST, EPOCHS, EVALUATED = "autocast all-reduce", "epochs async", "evaluated all-reduce"
SYNCHRONOUS = ("all-reduce:algorithm=ring", "all-reduce", "sync", "local-sgd:period=2", "decentralized")
WATCHED = ("all-reduce:algorithm=ring", "sync")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripts(tmp_path_factory.mktemp("launched"))


# A launcher of one script after the other. It imports torch and its compiler once, and forks.
LAUNCHER = """
import json, os, runpy, sys
import paceline.training, torch, torch._dynamo
def start(rank, port, dies, where, *strategies):
    pid = os.fork()
    if pid == 0:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_PORT": port, "DIES": dies}
        sys.path.insert(0, os.getcwd())
        sys.argv = ["train.py", where, *strategies]
        runpy.run_path("train.py", run_name="__main__")
        sys.exit()
    return pid
for words in json.loads(sys.argv[1]):
    os.mkdir(words[2])
    ranks = [start(rank, *words) for rank in range(3)]
    print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks], flush=True)
"""
ALL = [*SYNCHRONOUS, "async", *(f"watched {strategy}" for strategy in WATCHED), AUTOCAST, EPOCHS, EVALUATED]
DYING = {"all-reduce:algorithm=ring": "1 at 4", "async": "1 at 0"}


@pytest.fixture(scope="module")
def launched(folder: Path) -> Path:
    """A run of each strategy, by 3 processes."""
    assert _launch(folder, [(str(free_port()), "nobody", "all", *ALL)]) == [[0, 0, 0]]
    return folder / "all"


@pytest.fixture(scope="module")
def ends(folder: Path) -> dict[str, list[int]]:
    """Return how the three processes ended, in two runs in which one process dies."""
    runs = [(str(free_port()), dies, strategy, strategy) for strategy, dies in DYING.items()]
    return dict(zip(DYING, _launch(folder, runs), strict=True))


def _launch(folder: Path, runs: list[tuple[str, ...]]) -> list[list[int]]:
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, json.dumps(runs)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"},
        stdout=subprocess.PIPE,
        timeout=4 * PATIENCE_S,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_torchrun_is_such_a_launcher(launched: Path, folder: Path):
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    where = folder / "torchrun"
    where.mkdir()
    words = [torchrun, "--nproc-per-node", "3", "--master-port", str(free_port()), "train.py", str(where)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*words, *SYNCHRONOUS], cwd=folder, env=env, check=True, timeout=4 * PATIENCE_S)
    for number in range(len(SYNCHRONOUS)):
        expected = said(launched, number, ranks=3)
        for run, other in zip(said(where, number, ranks=3), expected, strict=True):
            assert {word: run[word] for word in ("parameters", "bytes", "steps")} == {
                word: other[word] for word in ("parameters", "bytes", "steps")
            }


@pytest.mark.parametrize("number", range(len(SYNCHRONOUS)), ids=SYNCHRONOUS)
def test_launched_processes_give_the_weights_of_local_ones_bit_for_bit(launched: Path, number: int):
    strategy = SYNCHRONOUS[number]
    workers = 2 if strategy == "sync" else 3  # one of the three is the server
    expected = pl.train(the_task(), strategy, pl.Local(workers=workers, threads=1), steps=8)
    runs = said(launched, number, ranks=3)
    for run in runs:
        assert run["steps"] == 8
        assert torch.equal(torch.tensor(run["parameters"], dtype=torch.float64), expected.parameters)
        assert run["bytes"] == expected.bytes_sent


@pytest.mark.parametrize("number", range(len(WATCHED)), ids=WATCHED)
def test_callbacks_of_the_first_process_see_and_stop_the_run_of_all(launched: Path, number: int):
    strategy, watcher = WATCHED[number], the_task(name="Watcher")
    workers = 2 if strategy == "sync" else 3
    here = pl.Local(workers=workers, threads=1)
    how = {"steps": 30, "evaluate_every": 3, "callbacks": [watcher]}
    expected = pl.train(the_task(name="watched"), strategy, here, **how)  # type: ignore[arg-type]
    assert expected.steps == 10
    runs = said(launched, len(SYNCHRONOUS) + 1 + number, ranks=3)
    for run in runs:
        assert torch.equal(torch.tensor(run["parameters"], dtype=torch.float64), expected.parameters)
    assert [run["seen"] for run in runs] == [watcher.seen, [], []]  # type: ignore[attr-defined]
    assert watcher.seen[:4] == [1, 2, 3, ["weight", "bias"]]  # type: ignore[attr-defined]


def test_every_process_gets_the_same_run_with_the_trace_of_all(launched: Path):
    runs = said(launched, len(SYNCHRONOUS), ranks=3)
    assert runs[0] == runs[1] | {"environment": runs[0]["environment"]}
    assert runs[0]["staleness"] == 8
    assert len(runs[2]["spans"]) == 3  # type: ignore[arg-type]
    assert all(runs[2]["spans"])  # type: ignore[call-overload]


def test_autocast_around_the_script_holds_in_every_process(launched: Path):
    with torch.autocast("cpu", torch.bfloat16):
        expected = pl.train(the_task(torch.float32), "all-reduce", pl.Local(workers=3, threads=1), steps=8)
    for run in said(launched, len(SYNCHRONOUS) + 1 + len(WATCHED), ranks=3):
        assert torch.equal(torch.tensor(run["parameters"], dtype=torch.float32), expected.parameters)
        assert run["environment"]["autocast"] == "cpu bfloat16"  # type: ignore[index]


def test_every_process_counts_the_same_updates_of_an_epoch(launched: Path):
    """Of 60 samples in batches of 12, by two workers and a server."""
    runs = said(launched, len(SYNCHRONOUS) + 2 + len(WATCHED), ranks=3)
    assert [run["steps"] for run in runs] == [2 * 5 * 2] * 3


def test_evaluations_that_launched_processes_share_give_the_metrics_of_one_that_looks_alone(
    launched: Path,
):
    torch.manual_seed(0)
    task = the_task(name="evaluated")
    cluster = pl.Simulated(workers=3, compute=pl.times.Constant(0.01), threads=1)
    expected = pl.train(task, "all-reduce", cluster, steps=8, evaluate_every=3)
    for run in said(launched, len(SYNCHRONOUS) + 3 + len(WATCHED), ranks=3):
        assert run["metrics"] == [[r.step, r.metric, r.extra] for r in expected.history if r.metric]
        assert len(run["metrics"]) == 3  # type: ignore[arg-type]
        assert all(run["evaluations"])  # type: ignore[call-overload]


def test_the_run_says_where_its_ranks_were_and_how_they_talked(launched: Path):
    environment = said(launched, 0, ranks=3)[1]["environment"]
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
        with refused("MASTER_ADDR:MASTER_PORT", has(f"127.0.0.1:{port}"), remedy=has("MASTER_PORT")):
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
    job = Job(strategy=chosen, roles=roles_of(chosen, pl.Launched()), seed=0)
    assert (job.ranks, job.workers) == (processes, workers)


def test_too_few_processes_for_a_strategy_are_refused(monkeypatch: pytest.MonkeyPatch):
    _pretend(monkeypatch, 2)
    with refused("processes", 2, bound=has("sync:servers=2", "enough", 3)):
        pl.train(the_task(), "sync:servers=2", pl.Launched(), steps=1)


def test_a_process_that_never_appears_is_named_after_the_deadline(tmp_path: Path):
    """In a separate process, because the store of the rendezvous stays open until its process ends."""
    script = tmp_path / "script.py"
    script.write_text(
        "import paceline as pl\n\nasync def program(ctx): ...\n\n"
        "pl.run_program(program, pl.Launched(deadline_s=1.5))\n"
    )
    words = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **words},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 1
    assert "rank 0 waited 1.5 s in meeting the others for rank 1" in ended.stderr


def test_a_hub_whose_thread_does_not_end_is_waited_for_until_the_deadline(
    caplog: pytest.LogCaptureFixture,
):
    class Stuck:
        """A hub that never returns from closing its connections."""

        def __init__(self) -> None:
            self.active_s = time.monotonic()
            self.released = threading.Event()

        def work(self, *_: object, **__: object) -> None: ...

        def close(self) -> None:
            self.released.wait(PATIENCE_S)

        def stop(self) -> None: ...

    hub = Stuck()
    middle = _Middle(hub, None, None, None)  # type: ignore[arg-type]
    middle.end(0.2)
    assert "rank 0 waited 0.2 s for the thread of the run's hub" in caplog.text
    hub.released.set()
    middle._thread.join(PATIENCE_S)
    assert not middle._thread.is_alive()


def test_a_name_that_does_not_resolve_is_named(monkeypatch: pytest.MonkeyPatch):
    _pretend(monkeypatch, 1)
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    with refused("MASTER_ADDR:MASTER_PORT", has("no-such-host.invalid")):
        pl.train(the_task(), "all-reduce", pl.Launched(), steps=1)


def test_outside_of_a_launcher_the_words_are_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK", raising=False)
    with refused("the environment", remedy=has("torchrun")):
        pl.Launched()


def _pretend(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
