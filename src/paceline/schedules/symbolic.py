"""Values as expressions: what a schedule computes, with the order of every addition, and no numbers.

Two expressions are the same number here exactly if they are the same up to a + b = b + a, which is exact in
IEEE arithmetic; (a + b) + c and a + (b + c) are not, since they may round differently.
"""

from __future__ import annotations

__all__ = ["Expressions", "ranks_of"]


def ranks_of(bits: int) -> list[int]:
    """The ranks that a set of ranks, given as bits, has."""
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


class Expressions:
    """Every expression that comes up, once: equal numbers are equal expressions."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, int, int], int] = {}
        self.contributors: list[int] = []
        """Of each expression, the ranks whose data it has, as bits."""
        self.chunk: list[int] = []
        """Of each expression, the chunk of these ranks' data."""

    def leaf(self, rank: int, chunk: int) -> int:
        """What `rank` held in `chunk` at the start."""
        return self._intern(("leaf", rank, chunk), 1 << rank, chunk)

    def add(self, left: int, right: int) -> int:
        """The sum of two expressions of one chunk. The caller has checked that they share no contributor."""
        key = ("add", min(left, right), max(left, right))
        return self._intern(key, self.contributors[left] | self.contributors[right], self.chunk[left])

    def _intern(self, key: tuple[str, int, int], contributors: int, chunk: int) -> int:
        if key not in self._ids:
            self._ids[key] = len(self.contributors)
            self.contributors.append(contributors)
            self.chunk.append(chunk)
        return self._ids[key]

    def describe(self, expression: int) -> str:
        return f"chunk {self.chunk[expression]} of ranks {ranks_of(self.contributors[expression])}"
