"""What a segment's first and last layers are called: by the largest block that begins, or ends, with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

__all__ = ["Names"]


class Names:
    """Of the parts of a model, in forward order. A part is named by the layer that it is of: "blocks.1.norm"."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._reach: dict[str, tuple[int, int]] = {}
        """Of each layer and each block: its first part and its last."""
        for place, name in enumerate(names):
            for block in _blocks(name):
                first, _ = self._reach.get(block, (place, place))
                self._reach[block] = first, place

    def between(self, start: int, stop: int) -> tuple[str, str]:
        """The first and the last layer of these parts.

        Either is a block of layers ("blocks.3"), if all of it is here. An operation of a block itself, such as the sum
        of a residual, has the block's name: where not all of the block is here, the layer next to it is named instead.
        """
        places = range(start, stop)
        return self._whole(places, start, stop), self._whole(places[::-1], start, stop)

    def _whole(self, places: Sequence[int], start: int, stop: int) -> str:
        blocks = (block for place in places for block in _blocks(self._names[place]))
        return next(
            (block for block in blocks if self._is_within(block, start, stop)), self._names[places[0]]
        )

    def _is_within(self, block: str, start: int, stop: int) -> bool:
        first, last = self._reach[block]
        return start <= first and last < stop


def _blocks(name: str) -> Iterable[str]:
    """What a layer is in, the largest block first, and the layer itself."""
    return accumulate(name.split("."), lambda block, part: f"{block}.{part}")
