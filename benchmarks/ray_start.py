"""Seconds until 4 workers on a running Ray cluster have taken their first step, minus the time to import torch.

Ours is a whole run of one step, from before `pl.train` until it has returned. It joins the cluster of two hosts,
reserves resources, starts one process per rank, and ends them. The baselines are 4 plain processes, started at the same
time, that import torch. The first kind does nothing else. The second also builds an optimizer, for which torch imports
its compiler, as every rank does. On a machine with fewer than 4 free cores they share the cores, so all times are
longer.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time

from benchmarks.result import Goal, Result, Row
from benchmarks.rounds import rounds
from tests.clusters.namespaces import Driver, can_make_hosts, one_machine, several_hosts

WORKERS = 4
ROUNDS = 3
LIMIT_S = 60.0
TITLE = f"seconds until {WORKERS} workers on a running Ray cluster have stepped once"
IMPORT = "import torch"
OPTIMIZER = "import torch; torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)"


def measure() -> Result:
    if importlib.util.find_spec("ray") is None:
        return Result(
            title=TITLE, unit="s", rows=[], goals=[], unmeasured=["Ray: pip install 'paceline[ray]'"]
        )
    with one_machine() if can_make_hosts() else several_hosts(rate=None) as hosts:
        driver = hosts.driver()
        driver.call(_seconds)  # reads torch from disk, so that it is cached for all others
        return _result(driver)


def _result(driver: Driver) -> Result:
    ours, bare, ready = [], [], []
    for _ in rounds(ROUNDS, LIMIT_S):
        ours.append(driver.call(_seconds))
        bare.append(_processes(IMPORT))
        ready.append(_processes(OPTIMIZER))
    rows = [
        Row(what="ours, one step on Ray", rounds=ours),
        Row(what="4 processes import torch", rounds=bare),
        Row(what="4 processes import torch and build an optimizer", rounds=ready),
    ]
    beyond = [mine - theirs for mine, theirs in zip(ours, ready, strict=True)]
    beyond_bare = [mine - theirs for mine, theirs in zip(ours, bare, strict=True)]
    goals = [
        Goal(what="seconds beyond torch's import", rounds=beyond_bare, at_most=5.0),
        Goal(what="seconds beyond torch and an optimizer", rounds=beyond),
    ]
    return Result(title=TITLE, unit="s", rows=rows, goals=goals)


def _seconds() -> float:
    """Return the seconds of a run on a host of the cluster."""
    import torch

    import paceline as pl

    task = pl.Task(
        model=lambda: torch.nn.Linear(4, 1),
        data=(torch.zeros(WORKERS, 4), torch.zeros(WORKERS, 1)),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        batch_size=WORKERS,
    )
    began_s = time.monotonic()
    pl.train(task, "all-reduce", pl.Ray("auto", workers=WORKERS), steps=1)
    return time.monotonic() - began_s


def _processes(program: str) -> float:
    began_s = time.monotonic()
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(WORKERS)]
    for process in started:
        process.wait()
    return time.monotonic() - began_s
