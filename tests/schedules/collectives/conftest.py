"""A second, naive interpreter of schedules, which shares nothing with the validator."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from paceline.schedules.collectives.steps import Accumulate, Buffer, Copy, Recv, Reduce, Schedule, Send

Execute = Callable[..., list[list[Any]]]


@pytest.fixture(scope="session")
def execute() -> Execute:
    return _execute


def _execute(
    schedules: Sequence[Schedule],
    data: Sequence[Sequence[Any]],
    combine: Callable[[Any, Any], Any],
    chance: random.Random | None = None,
) -> list[list[Any]]:
    """Run all ranks on `data[rank][chunk]` and return their data. Steps of a round go in a random
    order.
    """
    chance = chance or random.Random(0)
    memory = [
        {Buffer.DATA: list(rows), Buffer.SCRATCH: [None] * (len(rows) * schedule.scratch)}
        for rows, schedule in zip(data, schedules, strict=True)
    ]
    posted: dict[tuple[int, int], deque[list[Any]]] = defaultdict(deque)
    todo = [deque(schedule.rounds) for schedule in schedules]
    current: list[list[Any]] = [[] for _ in schedules]
    while any(current) or any(todo):
        moved = False
        for rank in chance.sample(range(len(schedules)), len(schedules)):
            if not current[rank] and todo[rank]:
                current[rank] = list(todo[rank].popleft())
                moved = True
            kept = _try_steps(rank, current[rank], memory[rank], posted, combine, chance)
            moved |= len(kept) < len(current[rank])
            current[rank] = kept
        assert moved, f"stuck at {current}"
    assert not any(posted.values()), "messages that nobody took"
    return [rows[Buffer.DATA] for rows in memory]


def _try_steps(rank, steps, memory, posted, combine, chance):
    # Messages of one pair are first in, first out, so only steps of different peers may change places.
    peers = list({_peer(step) for step in steps})
    chance.shuffle(peers)
    ordered = [step for peer in peers for step in steps if _peer(step) == peer]
    return [step for step in ordered if not _try_step(rank, step, memory, posted, combine)]


def _peer(step):
    match step:
        case Send(to, _):
            return "to", to
        case Recv(source, _) | Reduce(source, _):
            return "from", source
    return "local", step


def _try_step(rank, step, memory, posted, combine) -> bool:
    match step:
        case Send(to, chunks):
            posted[rank, to].append(memory[chunks.buffer][chunks.start : chunks.stop])
        case Copy(source, target) | Accumulate(source, target):
            values = memory[source.buffer][source.start : source.stop]
            _write(memory, target, values, combine if isinstance(step, Accumulate) else None)
        case Recv(source, chunks) | Reduce(source, chunks):
            if not posted[source, rank]:
                return False
            _write(
                memory, chunks, posted[source, rank].popleft(), combine if isinstance(step, Reduce) else None
            )
    return True


def _write(memory, chunks, values, combine) -> None:
    place = slice(chunks.start, chunks.stop)
    own = memory[chunks.buffer][place]
    assert len(own) == len(values)
    if combine:
        values = [combine(a, b) for a, b in zip(own, values, strict=True)]
    memory[chunks.buffer][place] = values
