"""Random delays in a real run: with `PACELINE_FUZZ=seed` each rank sleeps at random points where ordering matters.

These points are each read, write and fence of shared words, and each await. Races then occur sooner. Without the
variable, nothing changes.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Generator
from types import TracebackType
from typing import Any

from paceline.errors import ConfigurationError
from paceline.links.memory.shared import SharedMemory
from paceline.links.operation import Operation

VARIABLE = "PACELINE_FUZZ"

# Probabilities and maximum lengths of sleeps. A few sleeps are long enough for another rank to finish all its work.
# Most only change which rank is first.
_AT_WORDS, _AT_AWAITS = 0.002, 0.05
_SHORT_S, _LONG_S, _LONG_SHARE = 0.0005, 0.02, 0.02


def begin(rank: int) -> None:
    """Enable the delays in this process, if the environment variable is set."""
    text = os.environ.get(VARIABLE, "")
    # A process may have several runs, but needs the hooks only once.
    if not text or isinstance(SharedMemory.fence, _Fence):
        return
    if not text.isdigit():
        raise ConfigurationError(VARIABLE, "must be a whole number of at least 0", text, "or leave it out")
    chance = random.Random(int(text) * 1_000_003 + rank)
    _disturb_words(chance)
    _disturb_awaits(chance)


def _nap(chance: random.Random, share: float) -> None:
    if chance.random() < share:
        time.sleep(chance.uniform(0.0, _LONG_S if chance.random() < _LONG_SHARE else _SHORT_S))


def _disturb_words(chance: random.Random) -> None:
    words = SharedMemory.words

    def disturbed(self: SharedMemory, offset: int, count: int) -> Any:
        return _Words(words(self, offset, count), chance)

    SharedMemory.words = disturbed  # type: ignore[method-assign]
    SharedMemory.fence = _Fence(SharedMemory.fence, chance)  # type: ignore[assignment]


def _disturb_awaits(chance: random.Random) -> None:
    wait = Operation.__await__

    def disturbed(self: Operation[Any]) -> Generator[Operation[Any], None, Any]:
        _nap(chance, _AT_AWAITS)
        return (yield from wait(self))

    Operation.__await__ = disturbed  # type: ignore[method-assign]


class _Words:
    """Words of shared memory, with a random delay at each access."""

    def __init__(self, words: memoryview, chance: random.Random) -> None:
        self._words = words
        self._chance = chance

    def __getitem__(self, at: Any) -> Any:
        _nap(self._chance, _AT_WORDS)
        return self._words[at]

    def __setitem__(self, at: Any, value: int) -> None:
        _nap(self._chance, _AT_WORDS)
        self._words[at] = value


class _Fence:
    """A fence with a random delay before and after."""

    def __init__(self, fence: Any, chance: random.Random) -> None:
        self._fence = fence
        self._chance = chance

    def __enter__(self) -> None:
        _nap(self._chance, _AT_WORDS)
        with self._fence:
            pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _nap(self._chance, _AT_WORDS)
