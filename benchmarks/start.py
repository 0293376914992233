"""Seconds until 8 workers can take their first step, against 8 processes that multiprocessing spawns.

Ours is a whole run of one step, from before `pl.train` until it has returned: cold, including the start of the fork
server, and warm, like every later run of the same program. The spawned processes import torch, build the same model and
an optimizer, and report that they are ready. Both start from a program that has already imported torch.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from multiprocessing.connection import Connection, wait

from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds

WORKERS = 8
ROUNDS = 3
LIMIT_S = 40.0


def measure() -> Result:
    _in_new_program("ours")  # reads torch from disk, so that it is cached for all others
    ours, spawned = [], []
    for _ in rounds(ROUNDS, LIMIT_S):
        ours.append(_in_new_program("ours"))
        spawned.append(_in_new_program("spawned"))
    cold = Row(what="ours, cold", rounds=[seconds[0] for seconds in ours])
    warm = Row(what="ours, warm", rounds=[seconds[1] for seconds in ours])
    spawn = Row(what="multiprocessing, spawn", rounds=[seconds[0] for seconds in spawned])
    return Result(
        title=f"seconds until {WORKERS} workers can step",
        unit="s",
        rows=[cold, warm, spawn],
        goals=[
            Goal(what="ours, cold / spawn", rounds=compare(cold, spawn), at_most=1 / 3),
            Goal(what="ours, warm / spawn", rounds=compare(warm, spawn), at_most=1 / 3),
        ],
    )


def _in_new_program(whose: str) -> list[float]:
    """Measure in a new program. Otherwise the second measurement would use processes of the first."""
    command = [sys.executable, "-m", "benchmarks.start", whose]
    seconds: list[float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return seconds


def _start_ours() -> list[float]:
    import torch

    import paceline as pl
    from benchmarks.mlp import SAMPLES, build_model, cross_entropy, make_optimizer

    task = pl.Task(
        model=build_model,
        data=(torch.zeros(SAMPLES, 784), torch.zeros(SAMPLES, dtype=torch.int64)),
        loss=cross_entropy,
        optimizer=make_optimizer,
        batch_size=WORKERS,  # one sample each: the start is timed, not the step
    )
    seconds = []
    for _ in range(2):
        start_s = time.monotonic()
        pl.train(task, "all-reduce", pl.Local(workers=WORKERS), steps=1)
        seconds.append(time.monotonic() - start_s)
    return seconds


def _start_spawned() -> list[float]:
    import torch  # noqa: F401  (as a user's program has)

    context = multiprocessing.get_context("spawn")
    start_s = time.monotonic()
    pipes, processes = [], []
    for _ in range(WORKERS):
        ours, theirs = context.Pipe()
        process = context.Process(target=_be_ready, args=(theirs,))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    waiting = list(pipes)
    while waiting:
        for pipe in wait(waiting):
            assert isinstance(pipe, Connection)
            pipe.recv()
            waiting.remove(pipe)
    seconds = time.monotonic() - start_s
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send("end")
        process.join()
    return [seconds]


def _be_ready(pipe: Connection) -> None:
    from benchmarks.mlp import build_model, make_optimizer

    model = build_model()
    optimizer = make_optimizer(model.parameters())
    pipe.send("ready")
    pipe.recv()
    del optimizer


if __name__ == "__main__":
    print(json.dumps({"ours": _start_ours, "spawned": _start_spawned}[sys.argv[1]]()))
