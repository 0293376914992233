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
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

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


_Action: TypeAlias = tuple[int, int, int, int, int, int, int]
"""An action of a rank: phase, stage, message that it waits for, message that it sends, boundary of stages that this
message crosses, its port, and the port of its receiver. Messages are numbered. -1 stands for none, and for the boundary
between two stages of one rank. A plain tuple, because long pipelines have a million actions."""


class _Program(NamedTuple):
    """An order as numbers: it can be timed with different costs."""

    ranks: Sequence[Sequence[_Action]]
    messages: int


def pipeline_ends_s(order: Order, costs: StageCosts) -> list[float]:
    """Return the time at which each rank ends its last action."""
    return _ends_s(_program_of(order, len(costs.forward_s)), costs)


def _program_of(order: Order, stages: int) -> _Program:
    microbatches = 1 + max(micro for actions in order for _, micro, _ in actions)
    ranks, per_way = len(order), microbatches * stages

    found: list[list[_Action]] = []
    for rank, actions in enumerate(order):
        own: list[_Action] = []
        for phase, micro, chunk in actions:
            stage, place = chunk * ranks + rank, micro * stages
            if phase is Phase.FORWARD:
                to, needed = stage + 1, place + stage + per_way if stage else -1
                made = place + to + per_way if to < stages else -1
                hop = stage if made >= 0 and ranks > 1 else -1
                own.append((0, stage, needed, made, hop, 2 * rank + 1, 2 * (to % ranks) + 1))
            elif phase is Phase.WEIGHTS:
                own.append((3, stage, -1, -1, -1, 0, 0))
            else:
                code = 1 if phase is Phase.BACKWARD else 2
                to, needed = stage - 1, place + stage if stage + 1 < stages else -1
                made = place + to if stage else -1
                hop = to if stage and ranks > 1 else -1
                own.append((code, stage, needed, made, hop, 2 * rank, 2 * (to % ranks)))
        found.append(own)
    return _Program(found, 2 * per_way)


def _ends_s(program: _Program, costs: StageCosts) -> list[float]:
    seconds = costs.forward_s, costs.backward_s, costs.inputs_s, costs.weights_s
    actions, ranks = program.ranks, len(program.ranks)
    now, reached = [0.0] * ranks, [0] * ranks
    delivered_s = [-1.0] * program.messages  # negative: not yet
    waiting = [-1] * program.messages
    senders, receivers = ([Resource() for _ in range(2 * ranks)] for _ in range(2))
    able = deque(range(ranks))
    while able:
        rank = able.popleft()
        now_s = now[rank]
        for phase, stage, needed, made, hop, sender, receiver in actions[rank][reached[rank] :]:
            if needed >= 0:
                ready_s = delivered_s[needed]
                if ready_s < 0:
                    waiting[needed] = rank
                    break
                if ready_s > now_s:
                    now_s = ready_s
            now_s += seconds[phase][stage]
            reached[rank] += 1
            if made < 0:
                continue
            arrives_s = now_s
            if hop >= 0:
                latency_s, carry_s = costs.onward[hop]
                start_s = senders[sender].occupy(now_s, carry_s)
                arrives_s = receivers[receiver].occupy(start_s + latency_s, carry_s) + carry_s
            delivered_s[made] = arrives_s
            if waiting[made] >= 0:
                able.append(waiting[made])
        now[rank] = now_s
    return now


@lru_cache(maxsize=64)
def order_of(name: str, ranks: int, microbatches: int, chunks: int) -> Order:
    """Return an order by its name. The orders that were used last are stored."""
    return pipeline_order(name, ranks, microbatches, chunks)


@lru_cache(maxsize=32)
def _program(name: str, ranks: int, microbatches: int, chunks: int) -> _Program:
    return _program_of(order_of(name, ranks, microbatches, chunks), ranks * chunks)


def steady_ends_s(name: str, microbatches: int, chunks: int, ranks: int, costs: StageCosts) -> list[float]:
    """Return the time at which each rank ends, for any number of micro-batches.

    Once two groups of micro-batches in succession take the same time, all further groups do. Interleaved orders repeat
    after `ranks` micro-batches, the others after each one.
    """
    group = ranks if chunks > 1 else 1
    few = (3 if chunks > 1 else 2) * ranks + microbatches % group
    more = 2 * ranks
    while 3 * (few + group) < microbatches:  # otherwise all micro-batches take less time
        counts = (few + number * group for number in range(3))
        one, two, three = (_ends_s(_program(name, ranks, n, chunks), costs) for n in counts)
        steps = [(b - a, c - b) for a, b, c in zip(one, two, three, strict=True)]
        if all(abs(later - earlier) <= 1e-9 * later for earlier, later in steps):
            groups = (microbatches - few) // group - 2
            return [c + groups * step for c, (_, step) in zip(three, steps, strict=True)]
        few, more = few + more, 2 * more
    return _ends_s(_program(name, ranks, microbatches, chunks), costs)


def continuous_step_s(microbatches: int, costs: StageCosts, updates_s: Sequence[float]) -> float:
    """Return the seconds of a step of an order without a flush, in the steady state.

    All ranks follow 1F1B. `updates_s` is the time of an update on each rank. It delays the rank's next pass, but no
    message.
    """
    ranks = len(costs.forward_s)
    # Updates are spread over the micro-batches of a step: in the long run they take the same time.
    shares_s = [
        seconds + update_s / microbatches
        for seconds, update_s in zip(costs.forward_s, updates_s, strict=True)
    ]
    spread = replace(costs, forward_s=shares_s)
    few, more = (max(_ends_s(_program("1f1b", ranks, count, 1), spread)) for count in (4 * ranks, 8 * ranks))
    return microbatches * (more - few) / (4 * ranks)


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
