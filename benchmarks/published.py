"""Predictions compared with published runs: `python -m benchmarks.published`. With --fit, the constants of
`pl.devices.A100` are fitted first; that needs scipy.

Three constants are fitted, on every second row of each table (with --quick, every eighth row of one host): see
`Constants`. The links are those of the data sheets. The other rows, and the runs of SC 2021, are only predicted.
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
    """The fitted constants of a device. See `pl.devices.Device` for their meaning."""

    efficiency: float = pl.devices.A100.efficiency
    memory_efficiency: float = pl.devices.A100.memory_efficiency
    launch_s: float = pl.devices.A100.launch_s

    def cluster(self, devices: int, card: str = "800Gbps") -> pl.Simulated:
        """Return hosts of 8 A100s with NVLink. One device can use the whole card of its host."""
        device = replace(
            pl.devices.A100,
            efficiency=self.efficiency,
            memory_efficiency=self.memory_efficiency,
            launch=self.launch_s,
        )
        inside = pl.Link("2400Gbps", "2us")
        if devices <= 8:
            return pl.Simulated(workers=devices, math="none", device=device, link=inside)
        return pl.Simulated(
            workers=devices,
            math="none",
            device=device,
            hosts=devices // 8,
            inside=inside,
            link=pl.Link(card, "5us"),
            card=card,
        )


def rows_of(table: str) -> list[Row]:
    """Return the rows of one of `TABLES`."""
    with (_DATA / TABLES[table]).open(newline="") as file:
        found = [{name.strip(): float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    return [_row(row) for row in found]


def _row(row: dict[str, float]) -> Row:
    return Row(
        devices=int(row["# GPUs"]),
        batch=int(row["global batch"]),
        micro=int(row["micro batch"]),
        hidden=int(row["hidden size"]),
        heads=int(row["attention heads"]),
        layers=int(row["# layers"]),
        sequence=int(row["sequence length"]),
        tensor=int(row["tensor parallelism"]),
        data=int(row["data parallelism"]),
        pipeline=int(row["pipeline parallelism"]),
        seconds=row["iteration time (ms)"] / 1e3,
    )


@lru_cache(maxsize=256)
def task_of(hidden: int, heads: int, layers: int, sequence: int, batch: int) -> Task:
    return pl.models.GPT(
        layers,
        hidden,
        heads,
        sequence,
        VOCABULARY,
        batch,
        dtype=torch.bfloat16,
        gradient_dtype=torch.float32,
        recompute="full",
        fused_attention=False,
    )


def predicted_s(row: Row, cluster: Callable[[int], pl.Simulated]) -> float:
    task = task_of(row.hidden, row.heads, row.layers, row.sequence, row.batch)
    return pl.predict(task, row.strategy, cluster(row.devices)).step_seconds


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


def published_2021() -> list[tuple[Row, float]]:
    """Return the runs of Narayanan et al. (SC 2021) on hosts with 8 cards of 200 Gbit/s, with Tflop/s per device."""
    found = []
    for hidden, heads, layers, tensor, stages, micro, chunks, devices, batch, tflops in _SC_2021:
        extra = 2048 / (6 * hidden) + VOCABULARY / (16 * layers * hidden)
        flops = 96 * batch * 2048 * layers * hidden**2 * (1 + extra)
        mesh = tensor, devices // (tensor * stages), stages, flops / (devices * tflops * 1e12), chunks
        found.append((Row(devices, batch, micro, hidden, heads, layers, 2048, *mesh), tflops))
    return found


_SC_2021 = (
    (2304, 24, 24, 1, 1, 16, 1, 32, 512, 137.0),
    (4096, 32, 36, 4, 1, 16, 1, 128, 512, 142.0),
    (8192, 64, 48, 8, 2, 4, 1, 512, 1536, 138.0),
    (12288, 96, 80, 8, 8, 2, 2, 1536, 2304, 148.0),
    (20480, 128, 105, 8, 35, 1, 3, 2520, 2520, 163.0),
)


def fitted(rows: Sequence[Row]) -> Constants:
    """Fit the constants to rows. The rows of many hosts together weigh as much as those of one host."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    names = list(Constants.__dataclass_fields__)
    many = sum(row.devices > 8 for row in rows)
    weights = np.sqrt([1.0 if row.devices <= 8 else (len(rows) - many) / max(1, many) for row in rows])

    def misses(logs: np.ndarray) -> np.ndarray:
        constants = Constants(**dict(zip(names, map(float, np.exp(logs)), strict=True)))
        made = [predicted_s(row, constants.cluster) for row in rows]
        return weights * np.log([m / row.seconds for m, row in zip(made, rows, strict=True)])

    bounds = np.log([0.1, 0.1, 1e-6]), np.log([1.0, 1.0, 1e-3])
    start = np.log([0.9, 0.6, 5e-5])
    found = least_squares(  # larger errors count in proportion to their size, because a few rows are outliers
        misses, start, bounds=bounds, loss="soft_l1", f_scale=0.04, diff_step=0.01, max_nfev=8
    )
    return Constants(**dict(zip(names, map(float, np.exp(found.x)), strict=True)))


def main() -> None:
    tables = {table: rows_of(table) for table in TABLES}
    constants = Constants()
    if "--fit" in sys.argv:
        every = 8 if "--quick" in sys.argv else 2
        constants = fitted([*tables["one host"][::every], *tables["many hosts"][::2]])
        print(constants)
    for table, rows in tables.items():
        made = [predicted_s(row, constants.cluster) for row in rows]
        print(f"{table}, all {len(rows)} rows: {accuracy_of(rows, made)}")
        print(f"{table}, rows that are not fitted: {accuracy_of(rows[1::2], made[1::2])}")
    for row, tflops in published_2021():
        ratio = predicted_s(row, lambda devices: constants.cluster(devices, "1600Gbps")) / row.seconds
        print(f"SC 2021, hidden {row.hidden}: {tflops:g} Tflop/s measured, {tflops / ratio:.0f} predicted")


if __name__ == "__main__":
    main()
