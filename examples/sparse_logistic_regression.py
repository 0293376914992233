"""Sparse logistic regression without locks: a good case for Hogwild.

There are 20,000 random samples with 47,000 features. About 75 features of a sample are not zero, and their frequencies
are as uneven as those of words (the shape of RCV1). The weights are in memory that all workers share. A worker takes
one sample at a time, reads the weights of its features, and changes only those. Three methods:

    hogwild       no worker waits for another
    locked write  a lock is held while weights are changed
    locked step   a lock is held from reading the weights to changing them, so that no step is stale

The lock is a POSIX semaphore in shared memory: if it is free, acquiring it is a function call. Speeds are in samples
per second of wall-clock time, the best of a few alternating runs. The first ratio is relative to one worker without a
lock. The second ratio is hogwild relative to this method with the same number of workers. Losses are over all samples
after the last step, the median of the runs. Cores are the average number of cores in use: fewer than workers if they
waited for the lock, or if other programs were running. More workers than free cores gain nothing.

    python examples/sparse_logistic_regression.py
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import paceline as pl
from paceline.context import Context

WAYS = ("hogwild", "locked write", "locked step")

Guard = contextlib.AbstractContextManager[Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """Samples in compressed rows: sample i has `values[starts[i]:starts[i + 1]]` in the same range of `columns`."""

    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    labels: np.ndarray
    """1 or -1."""
    features: int

    def __len__(self) -> int:
        return len(self.labels)

    def split(self) -> list[tuple[np.ndarray, np.ndarray, float]]:
        """Return the columns, values and label of each sample."""
        cuts = self.starts[1:-1]
        parts = np.split(self.columns, cuts), np.split(self.values, cuts), self.labels.tolist()
        return list(zip(*parts, strict=True))

    def margins(self, weights: np.ndarray) -> np.ndarray:
        """Return the margin of each sample."""
        products = self.values * weights[self.columns]
        return self.labels * np.add.reduceat(products, self.starts[:-1])

    def loss(self, weights: np.ndarray) -> float:
        return float(np.logaddexp(0.0, -self.margins(weights)).mean())


def make_rows(samples: int = 20_000, features: int = 47_000, nonzeros: int = 75, seed: int = 0) -> Rows:
    """Return rows of length 1 and labels.

    Features follow a power law. Labels follow a hidden weight vector, with errors.
    """
    chance = np.random.default_rng(seed)
    frequency = 1.0 / (np.arange(features) + 50.0)  # like words, without the most common ones
    drawn = np.searchsorted(
        np.cumsum(frequency / frequency.sum()), chance.random((samples, nonzeros + nonzeros // 16))
    )
    # A feature drawn twice counts once.
    found = [np.unique(np.minimum(row, features - 1)) for row in drawn]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in found])])
    columns = np.concatenate(found)
    values = chance.lognormal(size=len(columns)) * np.log(
        1.0 / frequency[columns]
    )  # rare words have more weight
    norms = np.sqrt(np.add.reduceat(values**2, starts[:-1]))
    values /= np.repeat(norms, np.diff(starts))
    rows = Rows(starts, columns, values, np.ones(samples), features)
    hidden = chance.standard_normal(features)
    wrong = chance.random(samples) < 0.02
    labels = np.where((rows.margins(hidden) > 0) ^ wrong, 1.0, -1.0)
    return Rows(starts, columns, values, labels, features)


class Lock:
    """A POSIX semaphore in memory that processes share."""

    BYTES = 32  # sizeof(sem_t)

    def __init__(self, memory: torch.Tensor, *, create: bool) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._address = ctypes.c_void_p(memory.data_ptr())
        if create and self._library.sem_init(self._address, 1, 1):
            raise OSError(ctypes.get_errno(), "sem_init failed")

    def __enter__(self) -> None:
        while self._library.sem_wait(self._address):  # a signal may interrupt the wait
            pass

    def __exit__(self, *_: object) -> None:
        self._library.sem_post(self._address)


@dataclass(frozen=True, slots=True)
class Descent:
    """The program of every worker."""

    rows: Rows
    way: str
    epochs: int
    rate: float
    decay: float

    async def __call__(self, ctx: Context) -> dict[str, float]:
        like = torch.zeros(self.rows.features, dtype=torch.float64)
        window = ctx.net.window("weights", rows=1, like=like)
        semaphore = ctx.net.window("lock", rows=1, like=torch.zeros(Lock.BYTES, dtype=torch.uint8))
        lock = Lock(semaphore.tensor[0], create=ctx.rank == 0)
        weights = window.tensor[0].numpy()
        samples = self.rows.split()[ctx.rank :: len(ctx.workers)]
        nothing = contextlib.nullcontext()
        guards: dict[str, tuple[Guard, Guard]] = {
            "hogwild": (nothing, nothing),
            "locked write": (nothing, lock),
            "locked step": (lock, nothing),
        }
        await window.barrier()
        start_s, start_cpu_s = ctx.now(), time.process_time()
        for epoch in range(self.epochs):
            order = ctx.rng.permutation(len(samples))
            take_steps(weights, samples, order.tolist(), self.rate * self.decay**epoch, *guards[self.way])
        cpu_s = time.process_time() - start_cpu_s
        await window.barrier()
        seconds = ctx.now() - start_s
        loss = self.rows.loss(weights) if ctx.rank == 0 else math.nan
        return {"seconds": seconds, "cpu_s": cpu_s, "loss": loss}


def take_steps(
    weights: np.ndarray,
    samples: list[tuple[np.ndarray, np.ndarray, float]],
    order: list[int],
    rate: float,
    around_step: Guard,
    around_write: Guard,
) -> None:
    """Run one pass of gradient descent, sample by sample. The gradient is zero except in the sample's columns."""
    for number in order:
        columns, values, label = samples[number]
        with around_step:
            margin = label * float(weights[columns] @ values)
            change = values * (rate * label / (1.0 + math.exp(min(margin, 500.0))))
            with around_write:
                weights[columns] += change


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one method with one number of workers."""

    way: str
    workers: int
    speed: float
    """Samples per second."""
    cores: float
    """Average number of cores in use, over all workers."""
    loss: float


def measure(rows: Rows, way: str, workers: int, *, epochs: int = 3, seed: int = 0) -> Result:
    """Train on local worker processes."""
    run = pl.run_program(Descent(rows, way, epochs, 4.0, 0.8), pl.Local(workers=workers), seed=seed)
    seconds = max(result["seconds"] for result in run.results)
    cores = sum(result["cpu_s"] for result in run.results) / seconds
    return Result(way, workers, epochs * len(rows) / seconds, cores, run.results[0]["loss"])


def compare(rows: Rows, workers: list[int], *, epochs: int = 3, repeats: int = 5) -> list[Result]:
    """Measure every method with every number of workers. They alternate, so that other load affects all equally."""
    cases = [(way, count) for count in workers for way in WAYS]
    runs = [
        [measure(rows, way, count, epochs=epochs, seed=seed) for way, count in cases]
        for seed in range(repeats)
    ]
    return [_best(results) for results in zip(*runs, strict=True)]


def _best(results: Sequence[Result]) -> Result:
    """Return the fastest of some runs, with the median loss."""
    loss = statistics.median(result.loss for result in results)
    return replace(max(results, key=lambda result: result.speed), loss=loss)


def table(results: list[Result]) -> str:
    speed = {(result.way, result.workers): result.speed for result in results}
    one = speed["hogwild", results[0].workers]
    lines = ["way            workers   samples/s  to one worker  hogwild to it  cores    loss"]
    for result in results:
        ratio = speed["hogwild", result.workers] / result.speed
        lines.append(
            f"{result.way:<14}{result.workers:>8}{result.speed:>12,.0f}{result.speed / one:>14.2f}x{ratio:>14.2f}x"
            f"{result.cores:>7.2f}{result.loss:>8.4f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[1, 2, 4],
        help="numbers of workers; the first is the reference",
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    rows = make_rows()
    print(f"{len(rows):,} samples, {rows.features:,} features, {len(rows.columns) / len(rows):.0f} a sample")
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before the start")
    print(f"loss at first {math.log(2):.4f}, after {chosen.epochs} epochs:")
    print(table(compare(rows, chosen.workers, epochs=chosen.epochs, repeats=chosen.repeats)))


if __name__ == "__main__":
    main()
