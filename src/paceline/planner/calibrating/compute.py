"""Measurement of computations: gradients of a task by their samples, updates, and ranks that compute at once."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.collectives import barrier
from paceline.context import Batch, Context
from paceline.costs.calibrated_costs import ComputeCosts
from paceline.costs.fit import fit_line
from paceline.costs.pass_shares import PassShares
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model.replica import Replica
from paceline.planner.calibrating.passes import pass_seconds
from paceline.planner.calibrating.rounds import Rounds, Times, usual_s
from paceline.task.task import Task

_ROUND_S = 0.04
"""Seconds for which a measurement is repeated in a round. Shorter times would depend on the time slices of the
operating system."""
_MOST_REPEATS = 50
_BATCHES = 4
"""Number of batches that are used in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProgram:
    """Program of every rank: compute alone, and at the same time as other ranks."""

    task: Task | None
    counts: Sequence[int]
    """Numbers of ranks that compute at the same time."""
    limit_s: float
    seed: int = 0

    async def __call__(self, ctx: Context) -> dict[str, Any]:
        works = _Works.of_reference() if self.task is None else _Works.of(self.task, ctx.net.size, self.seed)
        groups = {count: ctx.net.split(range(count)) for count in self.counts if ctx.rank < count}
        rounds = Rounds(ctx, self.limit_s)
        works.warm_up()
        async for _ in rounds:
            for count in self.counts:
                await barrier(ctx)
                if count in groups:
                    await barrier(groups[count])
                    rounds.note(f"{count} at once", works.seconds(works.usual))
            await barrier(ctx)
            if ctx.rank == 0:
                for name, work in works.alone.items():
                    rounds.note(name, works.seconds(work))
        passes = {}
        if ctx.rank == 0 and self.task is not None:
            passes = pass_seconds(self.task, ctx.net.size, self.seed)
        await barrier(ctx)
        return {
            "times": rounds.taken,
            "samples": works.samples,
            "update_bytes": works.update_bytes,
            "passes": passes,
        }


Work = Callable[[], object]


@dataclass(slots=True)
class _Works:
    """What is measured: a usual computation, and others that one rank does alone."""

    usual: Work
    alone: dict[str, Work] = field(default_factory=dict)
    samples: list[int] = field(default_factory=list)
    update_bytes: int = 0
    _repeats: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of_reference(cls) -> _Works:
        """Return a gradient of a small model, for ranks without a task."""
        model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
        inputs = torch.randn(64, 512)
        source, target = torch.randn(2**21), torch.empty(2**21)
        made = cls(usual=lambda: model(inputs).sum().backward(), alone={"copy": lambda: target.copy_(source)})
        made.update_bytes = source.nbytes
        return made

    @classmethod
    def of(cls, task: Task, workers: int, seed: int) -> _Works:
        samples = Samples.of(task, seed)
        batches = GlobalBatches.of(task, samples, seed)
        replica = _replica(task, seed)
        slices = {count: _batches_of(batches, share) for count, share in _shares(batches, workers).items()}
        alone: dict[str, Work] = {
            f"gradient/{count}": _in_turn(replica, samples, of) for count, of in slices.items()
        }
        # Another replica, whose gradient is zero: repeated updates must not change what is computed above.
        alone["update"] = _replica(task, seed).apply
        usual = _in_turn(replica, samples, _batches_of(batches, workers))
        source, target = replica.parameters, torch.empty_like(replica.parameters)
        alone["copy"] = lambda: target.copy_(source)
        return cls(usual=usual, alone=alone, samples=list(slices), update_bytes=replica.parameters.nbytes)

    def warm_up(self) -> None:
        """Run each computation twice, and set how often it is repeated in a round."""
        for work in (self.usual, *self.alone.values()):
            work()
            start_s = time.perf_counter()
            work()
            taken_s = time.perf_counter() - start_s
            self._repeats[id(work)] = min(_MOST_REPEATS, max(1, math.ceil(_ROUND_S / max(taken_s, 1e-9))))

    def seconds(self, work: Work) -> float:
        """Return the mean seconds of a computation, without the time in which it waited for a core."""
        repeats = self._repeats[id(work)]
        start_s, waited_s, worked_s = time.perf_counter(), _queued_s(), time.thread_time()
        for _ in range(repeats):
            work()
        taken_s = time.perf_counter() - start_s - (_queued_s() - waited_s)
        # Linux counts the waiting in steps of a scheduler's tick, so it may be more than there was.
        return max(taken_s, time.thread_time() - worked_s) / repeats


def _queued_s() -> float:
    """Return the seconds in which this thread was ready to run, but had no core. 0 if unknown."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _replica(task: Task, seed: int) -> Replica:
    made = Replica.of(task, task.build_model(seed), seed=seed, rank=0, autocast=())
    made.build()
    return made


def _shares(batches: GlobalBatches, workers: int) -> dict[int, int]:
    """Return the sizes of slices to measure: for each number of samples, the number of workers with such slices."""
    wanted = (1, 2, workers, 4 * workers, batches.batch_size)
    counts = {batches.slice(0, 0, share).count: share for share in wanted}
    return {count: share for count, share in sorted(counts.items()) if count}


def _batches_of(batches: GlobalBatches, workers: int) -> list[Batch]:
    steps = max(1, batches.steps_per_epoch - 1)  # the last batch of an epoch may be smaller
    return [batches.slice(step % steps, 0, workers) for step in range(_BATCHES)]


def _in_turn(replica: Replica, samples: Samples, batches: Sequence[Batch]) -> Work:
    count = 0

    def compute() -> None:
        nonlocal count
        replica.compute(batches[count % len(batches)], samples)
        count += 1

    return compute


def costs_of(
    threads: int, counts: Sequence[int], results: Sequence[dict[str, Any]], cores: int
) -> tuple[ComputeCosts, float]:
    """Return the costs, and the bytes per second of a copy.

    The measured seconds are without those in which a rank had no core. If there are more threads than cores, all ranks
    get equal shares of the cores.
    """
    first: Times = results[0]["times"]
    slowdown = {count: _slowdown(results, count) * max(1.0, count * threads / cores) for count in counts}
    costs = ComputeCosts(threads=threads, slowdown=slowdown)
    copied = results[0]["update_bytes"] / usual_s(first["copy"])
    samples = tuple(results[0]["samples"])
    if not samples:
        return costs, copied
    seconds = tuple(usual_s(first[f"gradient/{count}"]) for count in samples)
    fixed_s, per_sample_s = fit_line(samples, seconds)
    filled = replace(
        costs,
        fixed_s=fixed_s,
        per_sample_s=per_sample_s,
        update_s=usual_s(first["update"]),
        update_bytes=results[0]["update_bytes"],
        samples=samples,
        seconds=seconds,
        passes=PassShares.of(**measured) if (measured := results[0].get("passes")) else None,
    )
    return filled, copied


def _slowdown(results: Sequence[dict[str, Any]], count: int) -> float:
    """Return how much slower `count` ranks compute at the same time than one rank alone: the median over the rounds."""
    alone_s: list[float] = results[0]["times"]["1 at once"]
    rounds = zip(*(each["times"][f"{count} at once"] for each in results[:count]), strict=True)
    ratios: list[float] = [
        sum(of_rank) / count / one_s for of_rank, one_s in zip(rounds, alone_s, strict=True)
    ]
    return max(1.0, statistics.median(ratios))
