"""Predictions compared with published runs: `python -m benchmarks.published`, and with --fit the constants are fitted.

The constants are those of `pl.devices.A100` and of the links of a host of 8 A100s: see `CONSTANTS`. They are fitted on
every second row of each table. The other rows, and the runs of SC 2021, are only predicted. Needs scipy for --fit.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

import paceline as pl
from paceline.planner.predict import predicted_parts
from paceline.task.task import Task

_DATA = Path(__file__).parent / "data"
TABLES = {"one host": "a100_one_host.csv", "many hosts": "a100_many_hosts.csv"}
VOCABULARY = 51200


@dataclass(frozen=True, slots=True)
class Row:
    """A published run."""

    devices: int
    batch: int
    micro: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    tensor: int
    data: int
    pipeline: int
    seconds: float
    chunks: int = 1

    @property
    def strategy(self) -> str:
        chunks = f",order=interleaved,chunks={self.chunks}" if self.chunks > 1 else ""
        mesh = f"data={self.data},pipeline={self.pipeline},tensor={self.tensor}"
        return f"hybrid:{mesh},microbatches={self.batch // self.data // self.micro}{chunks}"

    @property
    def group(self) -> tuple[int, ...]:
        """Equal for runs that a planner would choose from: one model, one batch, one cluster."""
        return self.devices, self.batch, self.hidden, self.layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The fitted constants, each with its meaning."""

    efficiency: float = 0.8
    """Fraction of a device's peak that matrix products reach."""
    memory_efficiency: float = 0.8
    """Fraction of the memory bandwidth that other operations reach."""
    launch_s: float = 5e-5
    """Seconds in which the host starts one operation."""
    inside_bytes_per_s: float = 250e9
    """Bandwidth of a device's link within a host."""
    inside_latency_s: float = 5e-6
    """Seconds from one device of a host to the next, in each round of a collective."""
    card_bytes_per_s: float = 90e9
    """Bandwidth of the network cards of a host together. One device may use all of it."""
    link_latency_s: float = 1e-5
    """Seconds from host to host."""

    def cluster(self, devices: int) -> pl.Simulated:
        inside = pl.Link(self.inside_bytes_per_s, self.inside_latency_s)
        words = {"efficiency": self.efficiency, "memory_efficiency": self.memory_efficiency}
        device = replace(pl.devices.A100, **words, launch=self.launch_s)
        if devices <= 8:
            return pl.Simulated(workers=devices, math="none", device=device, link=inside)
        between = pl.Link(self.card_bytes_per_s, self.link_latency_s)
        return pl.Simulated(
            workers=devices, math="none", device=device, hosts=devices // 8, inside=inside, link=between,
            card=self.card_bytes_per_s,
        )


def rows_of(table: str) -> list[Row]:
    """Return the rows of one of `TABLES`."""
    with (_DATA / TABLES[table]).open(newline="") as file:
        found = [{name.strip(): float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    names = ("# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers")
    names = (*names, "sequence length", "tensor parallelism", "data parallelism", "pipeline parallelism")
    return [Row(*(int(row[name]) for name in names), row["iteration time (ms)"] / 1e3) for row in found]


@lru_cache(maxsize=256)
def task_of(hidden: int, heads: int, layers: int, sequence: int, batch: int) -> Task:
    words = {"dtype": torch.bfloat16, "recompute": "full"}
    return pl.models.GPT(layers, hidden, heads, sequence, VOCABULARY, batch, **words)


def predicted_s(row: Row, cluster: Callable[[int], pl.Simulated]) -> float:
    task = task_of(row.hidden, row.heads, row.layers, row.sequence, row.batch)
    return predicted_parts(task, row.strategy, cluster(row.devices))[1].total


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of predictions."""

    mean: float
    ninth_decile: float
    tau: float
    """Kendall's tau within a model and batch size, as a mean over those with several rows."""
    regret: float
    """How much slower the run with the fastest prediction is than the fastest run, as a mean."""


def accuracy_of(rows: Sequence[Row], predictions: Sequence[float]) -> Accuracy:
    errors = [abs(made / row.seconds - 1) for row, made in zip(rows, predictions, strict=True)]
    groups: dict[tuple[int, ...], list[tuple[float, float]]] = defaultdict(list)
    for row, made in zip(rows, predictions, strict=True):
        groups[row.group].append((row.seconds, made))
    taus = [_tau(pairs) for pairs in groups.values() if len(pairs) > 1]
    regrets = [min(pairs, key=lambda each: each[1])[0] / min(pairs)[0] - 1 for pairs in groups.values()]
    return Accuracy(*map(float, (np.mean(errors), np.quantile(errors, 0.9), np.mean(taus), np.mean(regrets))))


def _tau(pairs: Sequence[tuple[float, float]]) -> float:
    signs = [np.sign(a[0] - b[0]) * np.sign(a[1] - b[1]) for a, b in combinations(pairs, 2)]
    return float(np.mean(signs))


def fitted(rows: Sequence[Row], start: Constants) -> Constants:
    """Fit the constants to rows. Few rows of many hosts weigh as much as many rows of one host."""
    from scipy.optimize import least_squares

    names = list(Constants.__dataclass_fields__)
    first = np.log([getattr(start, name) for name in names])
    many = sum(row.devices > 8 for row in rows)
    weights = [1.0 if row.devices <= 8 else (len(rows) - many) / max(1, many) / 2 for row in rows]

    def misses(logs: np.ndarray) -> np.ndarray:
        constants = Constants(**dict(zip(names, map(float, np.exp(logs)), strict=True)))
        made = [predicted_s(row, constants.cluster) for row in rows]
        return np.sqrt(weights) * np.log([m / row.seconds for m, row in zip(made, rows, strict=True)])

    ceilings = {"efficiency": 1.0, "memory_efficiency": 1.0, "inside_bytes_per_s": 300e9, "card_bytes_per_s": 100e9}
    upper = [np.log(ceilings.get(name, 1.0)) + 1e-9 for name in names]
    found = least_squares(
        misses, np.minimum(first, np.array(upper) - 1e-3), bounds=(-30, upper), loss="soft_l1", f_scale=0.1, diff_step=0.01
    )
    return Constants(**dict(zip(names, map(float, np.exp(found.x)), strict=True)))
