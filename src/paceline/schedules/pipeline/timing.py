"""The time at which each rank of a pipeline ends an order, if messages take time.

A rank starts an action when its previous action has ended and the message that it needs has been delivered. Sends are
in the background. Messages between two ranks in one direction follow each other; see `costs.transfers` for the rule.
Messages of other ranks at the same port are not considered.

All micro-batches are equal, so after a number of them each further group takes the same time. `steady` computes two
short pipelines and extends them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from paceline.costs.transfers import Resource
from paceline.schedules.pipeline import Actions, Order, Phase, pipeline_order

Message = tuple[float, float]
"""Latency of a message, and the seconds for which it occupies a port."""


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Costs of one micro-batch, by stage."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    inputs_s: Sequence[float]
    """Backward pass for the inputs only, and for the weights only."""
    weights_s: Sequence[float]
    onward: Sequence[Message]
    """Message from each stage to the next one. Gradients take the same time."""

    @property
    def by_phase(self) -> dict[Phase, Sequence[float]]:
        return {
            Phase.FORWARD: self.forward_s,
            Phase.BACKWARD: self.backward_s,
            Phase.INPUTS: self.inputs_s,
            Phase.WEIGHTS: self.weights_s,
        }


def pipeline_ends_s(order: Order, costs: StageCosts) -> list[float]:
    """Return the time at which each rank ends its last action."""
    ranks, last = len(order), len(costs.forward_s) - 1
    now, reached = [0.0] * ranks, [0] * ranks
    delivered: dict[tuple[bool, int, int], float] = {}
    waiting: dict[tuple[bool, int, int], int] = {}
    senders: dict[tuple[int, bool], Resource] = {}
    receivers: dict[tuple[int, bool], Resource] = {}
    able, seconds = deque(range(ranks)), costs.by_phase
    while able:
        rank = able.popleft()
        for number in range(reached[rank], len(order[rank])):
            phase, micro, chunk = order[rank][number]
            stage = chunk * ranks + rank
            forward = phase is Phase.FORWARD
            needed = _needed(phase, micro, stage, last)
            if needed is not None:
                ready_s = delivered.pop(needed, None)
                if ready_s is None:
                    waiting[needed] = rank
                    break
                now[rank] = max(now[rank], ready_s)
            now[rank] += seconds[phase][stage]
            reached[rank] = number + 1
            to = stage + 1 if forward else stage - 1
            if phase is Phase.WEIGHTS or not 0 <= to <= last:
                continue
            key, arrives_s = (forward, micro, to), now[rank]
            if to % ranks != rank:
                latency_s, carry_s = costs.onward[min(stage, to)]
                sender = senders.setdefault((rank, forward), Resource())
                receiver = receivers.setdefault((to % ranks, forward), Resource())
                start_s = sender.occupy(arrives_s, carry_s)
                arrives_s = receiver.occupy(start_s + latency_s, carry_s) + carry_s
            delivered[key] = arrives_s
            if key in waiting:
                able.append(waiting.pop(key))
    return now


def _needed(phase: Phase, micro: int, stage: int, last: int) -> tuple[bool, int, int] | None:
    """Return the message that an action waits for, by its receiver. None if it waits for none."""
    if phase is Phase.FORWARD:
        return (True, micro, stage) if stage else None
    return (False, micro, stage) if phase is not Phase.WEIGHTS and stage < last else None


@lru_cache(maxsize=256)
def _order(name: str, ranks: int, microbatches: int, chunks: int) -> Order:
    return pipeline_order(name, ranks, microbatches, chunks)


def steady_ends_s(name: str, microbatches: int, chunks: int, ranks: int, costs: StageCosts) -> list[float]:
    """Return the time at which each rank ends, for any number of micro-batches.

    Once two groups of `ranks` micro-batches in succession take the same time, all further groups do.
    """
    few = 3 * ranks + microbatches % ranks
    if microbatches <= few + 2 * ranks:
        return pipeline_ends_s(_order(name, ranks, microbatches, chunks), costs)
    one, two = (pipeline_ends_s(_order(name, ranks, few + more, chunks), costs) for more in (0, ranks))
    while few + 2 * ranks < microbatches:
        three = pipeline_ends_s(_order(name, ranks, few + 2 * ranks, chunks), costs)
        steps = [(b - a, c - b) for a, b, c in zip(one, two, three, strict=True)]
        if all(abs(later - earlier) <= 1e-9 * later for earlier, later in steps):
            groups = (microbatches - few) // ranks - 2
            return [c + groups * step for c, (_, step) in zip(three, steps, strict=True)]
        few, one, two = few + ranks, two, three
    return pipeline_ends_s(_order(name, ranks, microbatches, chunks), costs)


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """Activations of one micro-batch in one stage."""

    kept: float
    """Bytes stored from the forward pass until the weight gradients."""
    made: float = 0.0
    """Bytes that the backward pass computes again. With split backward passes they are stored until the second
    part."""
    rise: float = 0.0
    """Maximum number of recomputed bytes in memory at a time, if the backward pass is not split."""


def peak_activations(actions: Actions, stages: Sequence[ActivationBytes]) -> float:
    """Return the largest number of bytes of activations that a rank stores. `stages` are those of its chunks."""
    held = peak = 0.0
    for phase, _, chunk in actions:
        own = stages[chunk]
        if phase is Phase.FORWARD or phase is Phase.INPUTS:
            held += own.kept if phase is Phase.FORWARD else own.made
            peak = max(peak, held + (own.rise if phase is Phase.FORWARD else 0.0))
        else:
            peak = max(peak, held + (own.rise if phase is Phase.BACKWARD else 0.0))
            held -= own.kept + (own.made if phase is Phase.WEIGHTS else 0.0)
    return peak
