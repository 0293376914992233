"""Samples that are slow to fetch, and data that is too large to copy.

The first part is a step with 16 samples that take 5 ms each to fetch and a gradient of 60 ms. It runs with 2 loaders,
against the same step with its samples in memory, as tensors. The second part has 3 workers on a mapped file of 2 GB. It
measures the memory of each worker without file pages, after it has read a part of the file (its own memory, and its
share of memory shared with others, including torch), and the additional start time compared with a small data set.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import paceline as pl
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds

FETCH_S, COMPUTE_S, BATCH = 0.005, 0.060, 16
STEPS, WARM_UP = 30, 5
ROUNDS, LIMIT_S = 5, 60.0

WORKERS = 3
ROW = 4096
ROWS = 2**31 // (4 * ROW)
LARGE_STEPS = 40
LARGE_BATCH = 192


def measure() -> Result:
    result = Result(title="fetching samples", unit="ms a step", rows=[], goals=[])
    _measure_loaders(result)
    _measure_mapped_file(result)
    return result


# Slow samples


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are slow to fetch, like samples on a slow disk."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(FETCH_S)
        return torch.full((784,), float(index)), torch.zeros(1)


def _ready() -> tuple[Tensor, Tensor]:
    return torch.arange(512.0).repeat(784, 1).t().contiguous(), torch.zeros(512, 1)


def _slow_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    until_s, square = time.perf_counter() + COMPUTE_S, torch.ones(128, 128)
    while time.perf_counter() < until_s:
        torch.mm(square, square)
    return nn.functional.mse_loss(outputs, targets)


def _step_ms(data: Any, loaders: int) -> float:
    task = pl.Task(
        model=_small_model,
        data=data,
        loss=_slow_loss,
        optimizer=_sgd,
        batch_size=BATCH,
        loaders=loaders,
    )
    run = pl.train(task, "single", pl.Local(workers=1, threads=1), steps=STEPS)
    ends_s = [record.seconds for record in run.history][WARM_UP:]
    return 1e3 * statistics.median(b - a for a, b in itertools.pairwise(ends_s))


def _small_model() -> nn.Module:
    return nn.Linear(784, 1)


def _sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=1e-9)


def _measure_loaders(result: Result) -> None:
    measured: dict[tuple[Any, int], list[float]] = {(_ready, 0): [], (Slow, 2): [], (Slow, 0): []}
    for _ in rounds(ROUNDS, LIMIT_S):
        for settings, found in measured.items():
            found.append(_step_ms(*settings))
    names = ("samples in memory", "samples of 5 ms, 2 loaders", "samples of 5 ms, no loaders")
    ready, loaded, waited = (
        Row(what=name, rounds=found) for name, found in zip(names, measured.values(), strict=True)
    )
    result.rows += [ready, loaded, waited]
    result.goals += [
        Goal(what="2 loaders / samples in memory", rounds=compare(loaded, ready), at_most=1.15),
        Goal(what="no loaders / samples in memory", rounds=compare(waited, ready)),
    ]


# A large file


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Rows of an array in any kind of memory."""

    def __init__(self, array: np.ndarray, mark: str) -> None:
        self._array = array
        self._mark = mark
        self._fetched = 0

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self._fetched += 1
        if self._fetched % (LARGE_BATCH // WORKERS * LARGE_STEPS) == 0:  # in the last step
            Path(self._mark, str(os.getpid())).write_text(str(_own_bytes()), encoding="ascii")
        return torch.from_numpy(np.array(self._array[index])), torch.zeros(1)


def _own_bytes() -> int:
    """Return this process's share of memory, without file pages, which the system can drop."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kilobytes = {name: int(count) for name, count, *_ in map(str.split, lines)}
    return 1024 * (kilobytes["Pss_Anon:"] + kilobytes["Pss_Shmem:"])


def _train_on(array: np.ndarray, steps: int) -> tuple[float, list[int]]:
    """Return the seconds of a whole run, and the memory of each worker at its end."""
    with tempfile.TemporaryDirectory() as mark:
        task = pl.Task(
            model=_row_model,
            data=Rows(array, mark),
            loss=nn.functional.mse_loss,
            optimizer=_sgd,
            batch_size=LARGE_BATCH if steps > 1 else WORKERS,
        )
        began_s = time.monotonic()
        pl.train(task, "all-reduce", pl.Local(workers=WORKERS, threads=1), steps=steps)
        seconds = time.monotonic() - began_s
        return seconds, [int(path.read_text(encoding="ascii")) for path in Path(mark).iterdir()]


def _row_model() -> nn.Module:
    return nn.Linear(ROW, 1)


@contextmanager
def _large_file() -> Iterator[Path]:
    """Yield a file with two gigabytes on disk."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large.npy")
        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(ROWS, ROW))
        for start in range(0, ROWS, 4096):
            array[start : start + 4096] = 1.0
        array.flush()
        del array
        yield path


def _measure_mapped_file(result: Result) -> None:
    """Measure in a separate program, because the fork server of this one is already running."""
    with _large_file() as path:
        command = [sys.executable, "-m", "benchmarks.loading", str(path)]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    start = Row(what="start on 2 GB, mapped", rounds=[1e3 * seconds for seconds in found["large_s"]])
    small = Row(what="start on a small data set", rounds=[1e3 * seconds for seconds in found["small_s"]])
    result.rows += [start, small]
    assert len(found["large_bytes"]) == WORKERS
    later_s = [a - b for a, b in zip(found["large_s"], found["small_s"], strict=True)]
    result.goals += [
        Goal(what="start on 2 GB, mapped: seconds later", rounds=later_s, at_most=5.0),
        Goal(
            what=f"{WORKERS} workers on 2 GB, mapped: MB of each besides the file's pages",
            rounds=[nbytes / 1e6 for nbytes in found["large_bytes"]],
            at_most=100.0,
        ),
        Goal(
            what=f"{WORKERS} workers on a small data set: the same",
            rounds=[nbytes / 1e6 for nbytes in found["small_bytes"]],
        ),
    ]


def _measure_in_this_program(path: str) -> dict[str, Any]:
    large = np.load(path, mmap_mode="r")
    small = np.ones((10_000, ROW), np.float32)[:LARGE_BATCH]
    _train_on(small, 1)  # starts the fork server
    large_s, small_s = [], []
    for _ in range(3):
        large_s.append(_train_on(large, 1)[0])
        small_s.append(_train_on(small, 1)[0])
    large_bytes, small_bytes = _train_on(large, LARGE_STEPS)[1], _train_on(small, LARGE_STEPS)[1]
    return {"large_s": large_s, "small_s": small_s, "large_bytes": large_bytes, "small_bytes": small_bytes}


if __name__ == "__main__":
    print(json.dumps(_measure_in_this_program(sys.argv[1])))
