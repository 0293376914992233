"""Predictions by a short event simulation, for any strategy on any simulated cluster.

The strategy's own program runs in virtual time, with shapes instead of numbers, until its steps take equal times.
Prices, operations and shapes of the task are counted once and shared by all simulations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.clusters.base.job import Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.simulated.models import KnownModel
from paceline.clusters.simulated.simulated import Simulated
from paceline.context import Strategy
from paceline.planner.facts import TaskFacts
from paceline.planner.prediction import Parts
from paceline.planner.prices import is_random, pricing_of
from paceline.planner.steady import steady_step_s
from paceline.run_length import PartialBatches
from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.shared.pipelining.program import SegmentedStrategy
from paceline.strategies.zero import Zero
from paceline.trace import Spans
from paceline.trace.spans import COMPUTING, Kind
from paceline.trace.timeline import PARTS, sweep

_CYCLES = (4, 16, 400)
GRADIENTS = 16_000
"""Gradients of a simulation that has no steady state, or random times. More would change the mean by about 1 %."""
_FEWEST_CYCLES, _MOST_CYCLES = 12, 4000
_EXAMINED = 32
"""Maximum number of workers with spans that are examined."""
_COMPUTE = [PARTS.index(COMPUTING), PARTS.index((Kind.CANCELLED,))]
_UPDATE, _COMMUNICATE = PARTS.index((Kind.UPDATE,)), PARTS.index((Kind.RECEIVE, Kind.SEND))


def simulated_parts(
    facts: TaskFacts, strategy: Strategy, cluster: Simulated, most: int = GRADIENTS
) -> tuple[Parts, int]:
    """Return the parts of a step in the steady state, and the memory of the rank that needs the most.

    `most` is the largest number of gradients.
    """
    known = replace(cluster, known=KnownModel(facts.shapes, pricing_of(facts, cluster)))
    found: list[Sequence[Outcome]] = []

    def simulate(updates: int) -> Sequence[float]:
        found[:] = [_outcomes(facts, strategy, known, updates)]
        return _ends_s(found[0])

    cycle, random = _cycle(strategy, cluster.workers), is_random(cluster)
    longest = _most_cycles(strategy, cluster.workers, cycle, most)
    # Workers of different speeds have patterns that repeat after many cycles, unless all wait for each other.
    varies = random or (bool(cluster.slow) and not isinstance(strategy, SegmentedStrategy | Zero))
    tried = _CYCLES[-1:] if varies else _CYCLES
    cycles = [longest] if random else sorted({min(each, longest) for each in tried})
    step_s = steady_step_s(simulate, cycle, cycles=cycles, varies=varies)
    memory_bytes = max(outcome.memory.get("total", 0) for outcome in found[0])
    return _parts(found[0], step_s), memory_bytes


def _outcomes(facts: TaskFacts, strategy: Strategy, cluster: Simulated, updates: int) -> Sequence[Outcome]:
    roles = tuple(strategy.roles(cluster.workers))
    job = Job(strategy=strategy, roles=roles, seed=0, task=facts.task_of_shapes, steps=updates)
    return cluster.run(job)


def _ends_s(outcomes: Sequence[Outcome]) -> list[float]:
    """Return when each update ended. Workers that update independently have their own records."""
    own = [update["seconds"] for outcome in outcomes for update in outcome.updates]
    records = next((outcome.records for outcome in outcomes if outcome.records), [])
    return sorted(own) or [record["seconds"] for record in records]


def _cycle(strategy: Strategy, workers: int) -> int:
    """Return the number of updates in a cycle. A worker computes one gradient in it on average, or one period."""
    if isinstance(strategy, ParameterServer) and strategy.policy(workers).cancels:
        return 1  # all workers begin again after each update
    if isinstance(strategy, PartialBatches):
        return max(1, round(1 / strategy.batches_per_update(workers)))
    return max(1, getattr(strategy, "period", 1))


def _most_cycles(strategy: Strategy, workers: int, cycle: int, most: int) -> int:
    share = strategy.batches_per_update(workers) if isinstance(strategy, PartialBatches) else 1.0
    gradients = workers * max(1.0, share * cycle)
    return round(min(_MOST_CYCLES, max(_FEWEST_CYCLES, most / gradients)))


def _parts(outcomes: Sequence[Outcome], step_s: float) -> Parts:
    """Divide the seconds of a step into parts, in proportion to the workers' time.

    The time in which a worker waits for a server counts as the update or the communication of the server.
    """
    spans = [outcome.spans for outcome in outcomes if outcome.spans is not None and len(outcome.spans)]
    end_s = max(outcome.seconds for outcome in outcomes)
    workers = [each for each in spans if each.role != "server"] or spans
    servers = [each for each in spans if each.role == "server"]
    own = _shares(workers[:: -(-len(workers) // _EXAMINED)], end_s)
    compute, update, communicate = (float(own[part].sum()) for part in (_COMPUTE, _UPDATE, _COMMUNICATE))
    wait = max(0.0, 1 - compute - update - communicate)
    if servers:
        served = _shares(servers, end_s)
        added = min(wait, float(served[_UPDATE]))
        update, wait = update + added, wait - added
        added = min(wait, max(0.0, float(served[_COMMUNICATE]) - communicate))
        communicate, wait = communicate + added, wait - added
    shares = (compute, communicate, wait, update)
    compute, communicate, wait, update = (step_s * each / sum(shares) for each in shares)
    return Parts(compute=compute, communicate=communicate, wait=wait, bubble=0.0, update=update)


def _shares(spans: Sequence[Spans], end_s: float) -> np.ndarray:
    """Return the share of each of `PARTS` in the time of these ranks."""
    seconds = sum(sweep(each.array, end_s).seconds() for each in spans)
    return np.asarray(seconds) / (end_s * len(spans))
