"""A script that a launcher starts in every process, its task, and the results that its processes write."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import torch

import paceline as pl

__all__ = ["free_port", "said", "the_task", "write_scripts"]

TASK = """
import os, signal
import torch
import paceline as pl

def data():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(60, 6, dtype=torch.float64, generator=generator)
    return inputs, inputs @ torch.arange(6.0, dtype=torch.float64)

def loss(outputs, targets):
    if "DIES" in os.environ and os.environ["DIES"] == f"{pl.Launched().place.rank} at {loss.calls}":
        os.kill(os.getpid(), signal.SIGKILL)
    loss.calls += 1
    return torch.nn.functional.mse_loss(outputs.squeeze(-1), targets)
loss.calls = 0

def task(dtype=torch.float64):
    return pl.Task(
        model=lambda: torch.nn.Linear(6, 1, dtype=dtype),
        data=tuple(tensor.to(dtype) for tensor in data()),
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

def evaluated():
    # By all workers, with the statistics of the first.
    layers = (torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    return pl.Task(
        model=torch.nn.Sequential(*layers).double(),
        data=data,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02),
        batch_size=12,
        test=data,
        test_batch_size=7,
        metric={"loss": "loss", "perplexity": "perplexity"},
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
from the_task import Watcher, evaluated, task, watched

if __name__ == "__main__":
    where, strategies = sys.argv[1], sys.argv[2:]
    rank = pl.Launched().place.rank
    deadline_s = 60.0 if os.environ.get("DIES", "nobody") == "nobody" else 20.0  # also how long processes may start
    for number, strategy in enumerate(strategies):
        way, _, strategy = strategy.rpartition(" ")
        watcher = Watcher()
        how = {"epochs": 2} if way == "epochs" else {"steps": 8}
        what = task(torch.float32) if way == "autocast" else task()
        if way == "watched":
            what, how = watched(), {"steps": 30, "evaluate_every": 3, "callbacks": [watcher]}
        if way == "evaluated":
            torch.manual_seed(0)
            what, how = evaluated(), {"steps": 8, "evaluate_every": 3}
        try:
            with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
                run = pl.train(what, strategy, pl.Launched(deadline_s=deadline_s, threads=1), **how)
        except pl.PacelineError as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        else:
            said = {
                "parameters": run.parameters.tolist(), "steps": run.steps, "staleness": sum(run.staleness.values()),
                "bytes": run.bytes_sent, "environment": run.environment, "spans": [len(s) for s in run.trace.spans],
                "seen": watcher.seen, "metrics": [[r.step, r.metric, r.extra] for r in run.history if r.metric],
                "evaluations": [len(s.of(pl.trace.Kind.EVALUATE)) for s in run.trace.spans],
            }
        with open(f"{where}/{number}-{rank}.json", "w") as file:
            json.dump(said, file)
"""


def write_scripts(folder: Path) -> Path:
    """`train.py FOLDER STRATEGY…` trains with each strategy, and every rank writes its results to the folder."""
    (folder / "the_task.py").write_text(TASK)
    (folder / "train.py").write_text(SCRIPT)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def said(folder: Path, number: int, ranks: int) -> list[dict[str, object]]:
    return [json.loads((folder / f"{number}-{rank}.json").read_text()) for rank in range(ranks)]


def the_task(*dtype: torch.dtype, name: str = "task") -> pl.Task:
    names: dict[str, object] = {}
    exec(TASK, names)
    return names[name](*dtype)  # type: ignore[operator, no-any-return]
