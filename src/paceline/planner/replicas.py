"""Steps of workers that each hold the whole model and meet in collectives.

Workers compute at the same time, so one collective and the seconds of each worker's gradient are enough. If times are
drawn at random, a number of steps is drawn, as the simulation would draw them, and the slowest worker of each counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.clusters.rank.streams import DELAY_STREAM
from paceline.clusters.simulated.simulated import Simulated
from paceline.context import Strategy
from paceline.costs.prices import Price, Work, ready_shares
from paceline.model.buckets import Buckets
from paceline.planner.facts import TaskFacts
from paceline.planner.places import Places, chosen_algorithm
from paceline.planner.prediction import Parts
from paceline.planner.prices import is_random, needs_simulation, pricing_of
from paceline.strategies.all_reduce import AllReduce
from paceline.strategies.diloco import DiLoCo
from paceline.strategies.local_sgd import LocalSGD
from paceline.strategies.single import Single
from paceline.strategies.zero import Zero

_DRAWS = 65_536
"""Gradients drawn for a prediction with random times."""
_FEWEST, _MOST = 8, 512
"""Bounds of the number of steps, or of periods, that are drawn."""
_SMALL = 64
"""Up to this number of workers, models with buffers are simulated: their broadcasts are not computed here."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Replicas:
    """Workers with whole models, on a cluster."""

    facts: TaskFacts
    cluster: Simulated

    @cached_property
    def places(self) -> Places:
        return Places(self.cluster, self.cluster.workers, 1, 1)

    @cached_property
    def _prices(self) -> list[Price]:
        pricing, stragglers = pricing_of(self.facts, self.cluster), self.cluster.stragglers
        seeds = (np.array([0, rank, DELAY_STREAM], dtype=np.uint32) for rank in range(self.cluster.workers))
        return [
            pricing.of_rank(rank, stragglers, np.random.default_rng(seed)) for rank, seed in enumerate(seeds)
        ]

    def gradients_s(self, period: int = 1) -> Floats:
        """Return the seconds in which each worker computes `period` gradients, for a number of steps or periods."""
        workers = self.cluster.workers
        counts = [self.facts.batches.slice(0, rank, workers).count for rank in range(workers)]
        ranks = list(zip(self._prices, counts, strict=True))
        if not is_random(self.cluster):
            return period * np.array([self._fixed_s(ranks)])
        steps = min(_MOST, max(_FEWEST, _DRAWS // (workers * period)))
        drawn = [
            [price.seconds(Work.GRADIENT, 0, count) for _ in range(steps * period)] for price, count in ranks
        ]
        seconds: Floats = np.array(drawn).reshape(workers, steps, period).sum(axis=2).T
        return seconds

    def _fixed_s(self, ranks: Sequence[tuple[Price, int]]) -> list[float]:
        """Return the seconds of a gradient of each rank. Ranks with equal prices compute the same."""
        known: dict[Any, float] = {}
        seconds = []
        for price, count in ranks:
            key = (price if price.fixed is None else price.fixed), count
            if key not in known:
                known[key] = price.seconds(Work.GRADIENT, 0, count)
            seconds.append(known[key])
        return seconds

    def update_s(self, share: float = 1.0) -> float:
        """Return the seconds of an update of a share of the parameters, on the slowest worker."""
        layout = self.facts.shapes.holding.layout
        nbytes = round(layout.length * share) * layout.dtype.itemsize
        slow = {price.fixed: price for price in self._prices}
        return max(price.seconds(Work.UPDATE, 0, nbytes) for price in slow.values())

    @property
    def gradient_bytes(self) -> int:
        return self.facts.shapes.holding.gradient_bytes

    @property
    def flat_bytes(self) -> int:
        """Bytes of the flat parameters."""
        layout = self.facts.shapes.holding.layout
        return layout.length * layout.dtype.itemsize

    def memory_bytes(self, *, shards: int = 1, states: int = 0) -> int:
        """Return the peak of a worker. `shards` ranks share the optimizer state. `states` copies are added."""
        shapes = self.facts.shapes
        holding = shapes.holding
        own = holding.split(shards, elementwise=shapes.works_elementwise)[0] if shards > 1 else None
        state = holding.optimizer_bytes(holding.layout, shapes.memory.optimizer_state(), own)
        largest = self.facts.batches.slice(0, 0, self.cluster.workers).count
        largest = -(-largest // self.facts.task.accumulate)
        buffers = 2 * shapes.memory.buffer_bytes
        fixed = holding.parameter_bytes + holding.gradient_bytes + buffers
        return round(fixed + state + self.facts.activation_bytes(largest) + states * self.flat_bytes)

    def all_reduce_s(self, nbytes: int, algorithm: str) -> float:
        return self.places.sum_s(0, nbytes, algorithm)


def replicas_parts(facts: TaskFacts, strategy: Strategy, cluster: Simulated) -> tuple[Parts, int] | None:
    """Return the parts of a step, and the peak memory. None if the strategy or the cluster needs a simulation."""
    known = _KNOWN.get(type(strategy))
    if known is None or needs_simulation(cluster):
        return None
    if cluster.workers <= _SMALL and len(facts.shapes.buffers):
        return None
    fields, predict = known
    others = [each for each in dataclasses.fields(strategy) if each.name not in fields]  # type: ignore[arg-type]
    if any(getattr(strategy, each.name) != each.default for each in others):
        return None
    return predict(strategy, Replicas(facts, cluster))


def _single(strategy: Single, replicas: Replicas) -> tuple[Parts, int] | None:
    if replicas.cluster.workers > 1:
        return None
    return _parts(replicas.gradients_s(), 0.0, replicas.update_s()), replicas.memory_bytes()


def _all_reduce(strategy: AllReduce, replicas: Replicas) -> tuple[Parts, int] | None:
    """Buckets are summed during the backward pass, one after the other."""
    gradients_s = replicas.gradients_s()
    slowest_s = gradients_s.max(axis=1)
    layout = replicas.facts.shapes.holding.layout
    buckets = Buckets(layout, int(strategy.bucket_mb * 2**20))
    algorithm = _settled(strategy.algorithm, replicas)
    if algorithm is None:
        return None
    sums_s: dict[int, float] = {}
    ends_s = np.zeros(len(slowest_s))
    for number, ready in zip(buckets.order(), ready_shares(buckets.shares()), strict=True):
        place = buckets.place(number)
        nbytes = (place.stop - place.start) * replicas.facts.shapes.holding.reduction_dtype.itemsize
        if nbytes not in sums_s:
            sums_s[nbytes] = replicas.all_reduce_s(nbytes, algorithm)
        ends_s = np.maximum(ends_s, ready * slowest_s) + sums_s[nbytes]
    exposed_s = float((np.maximum(ends_s, slowest_s) - slowest_s).mean())
    return _parts(gradients_s, exposed_s, replicas.update_s()), replicas.memory_bytes()


def _zero(strategy: Zero, replicas: Replicas) -> tuple[Parts, int] | None:
    """Stage 1: a reduce-scatter, an update of a shard, and an all-gather."""
    if strategy.stage != 1:
        return None
    places, ranks = replicas.places, replicas.cluster.workers
    members = places.data_members(0)
    rings_s = places.ring_s(members, replicas.gradient_bytes, 1) + places.ring_s(
        members, replicas.flat_bytes, 1
    )
    parts = _parts(replicas.gradients_s(), rings_s, replicas.update_s(1 / ranks))
    return parts, replicas.memory_bytes(shards=ranks)


def _local_sgd(strategy: LocalSGD, replicas: Replicas) -> tuple[Parts, int] | None:
    tensors = [replicas.flat_bytes]
    if strategy.averages != "parameters":
        tensors += [each.nbytes for each in replicas.facts.shapes.moments()]
    return _local(strategy.period, strategy.algorithm, tensors, replicas)


def _diloco(strategy: DiLoCo, replicas: Replicas) -> tuple[Parts, int] | None:
    """It stores the parameters after the last outer step, and the outer momentum."""
    return _local(strategy.period, strategy.algorithm, [replicas.flat_bytes], replicas, states=2)


def _local(
    period: int, given: str, tensors: list[int], replicas: Replicas, states: int = 0
) -> tuple[Parts, int] | None:
    """Return the mean of `period` local steps, after which workers average tensors of these bytes."""
    algorithm = _settled(given, replicas)
    if algorithm is None:
        return None
    average_s = sum(replicas.all_reduce_s(nbytes, algorithm) for nbytes in tensors)
    parts = _parts(replicas.gradients_s(period), average_s, period * replicas.update_s())
    return Parts.mean([(parts, 1 / period)]), replicas.memory_bytes(states=states)


def _settled(algorithm: str, replicas: Replicas) -> str | None:
    """Return the algorithm of a run. None for one through shared memory."""
    if algorithm == "auto":
        return chosen_algorithm(replicas.places.hosts, replicas.gradient_bytes)
    return None if algorithm == "shared" else algorithm


def _parts(gradients_s: Floats, communicate_s: float, update_s: float) -> Parts:
    compute_s = float(gradients_s.mean())
    wait_s = float(gradients_s.max(axis=1).mean()) - compute_s
    return Parts(compute=compute_s, communicate=communicate_s, wait=wait_s, bubble=0.0, update=update_s)


_KNOWN: Mapping[type[Any], tuple[set[str], Callable[[Any, Replicas], tuple[Parts, int] | None]]] = {
    Single: (set(), _single),
    AllReduce: ({"algorithm", "bucket_mb"}, _all_reduce),
    Zero: ({"stage"}, _zero),
    LocalSGD: ({"period", "averages", "algorithm"}, _local_sgd),
    DiLoCo: ({"period", "algorithm", "outer_lr", "outer_momentum"}, _diloco),
}
"""For each strategy: the parameters that its function supports, and the function. Others need a simulation."""
