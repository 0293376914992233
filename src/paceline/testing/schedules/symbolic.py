"""Symbolic values: the expressions that a schedule computes, with the order of every addition.

Two expressions are equal here exactly if they are equal up to a + b = b + a, which is exact in IEEE arithmetic.
(a + b) + c and a + (b + c) are different, because they may round differently.
"""

from __future__ import annotations


def ranks_of(bits: int) -> list[int]:
    """Return the ranks in a bit mask."""
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


class Expressions:
    """A table of unique expressions: equal values have the same index."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, int, int], int] = {}
        self.contributors: list[int] = []
        """For each expression, the ranks that contribute to it, as a bit mask."""
        self.chunk: list[int] = []
        """For each expression, the chunk of these ranks' data."""

    def leaf(self, rank: int, chunk: int) -> int:
        """Return the initial value of `chunk` on `rank`."""
        return self._intern(("leaf", rank, chunk), 1 << rank, chunk)

    def add(self, left: int, right: int) -> int:
        """Return the sum of two expressions of one chunk. The caller ensures that they share no contributor."""
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
