"""Names of a segment's first and last layers. A block is named if all of it is in the segment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate


class Names:
    """Names of the parts of a model, in forward order. A part has the name of its layer: "blocks.1.norm"."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._reach: dict[str, tuple[int, int]] = {}
        """First and last part of each layer and each block."""
        for place, name in enumerate(names):
            for block in _blocks(name):
                first, _ = self._reach.get(block, (place, place))
                self._reach[block] = first, place

    def between(self, start: int, stop: int) -> tuple[str, str]:
        """Return the names of the first and the last layer of these parts.

        If all layers of a block are among the parts, return the name of the block ("blocks.3"). An operation directly
        in a block, such as the addition of a residual, has the name of the block. If only some operations of the
        block are among the parts, return the name of the adjacent layer instead.
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
    """Return the blocks that contain a layer, the largest first, and the layer itself."""
    return accumulate(name.split("."), lambda block, part: f"{block}.{part}")
