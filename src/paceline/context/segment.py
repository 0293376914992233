"""A run of a model's layers, in forward order: what a rank may hold of a model instead of all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["Joining", "Segment", "Together"]

Joining = Literal["sum", "max"]
"""What the ranks of a tensor group make of a value that each of them has: the same on all of them, the sum or the
maximum."""


class Together(NamedTuple):
    """A value that goes over a cut, and what the ranks of a tensor group do with it there."""

    place: int
    """Among the values that go over it."""
    how: Joining = "sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What there is to know of a segment before it is computed. Bytes and operations are those of one sample."""

    number: int
    stage: int
    """The stage that it belongs to: what one rank holds at once is the segments of one or several stages."""
    first: str
    """Its first layer, by name."""
    last: str
    parameters: tuple[str, ...]
    """All that it uses, by name. A tied one is in several segments."""
    buffers: tuple[str, ...]
    parameter_count: int
    operations: float
    """Of a forward pass: floating-point operations, and what moving its outputs is worth in them."""
    flops: float = 0.0
    """Of a forward pass: those of matrix products alone."""
    moved_bytes: float = 0.0
    """What all other operations of that pass read and write."""
    share: float
    """Its part of the operations of the whole model."""
    bytes_in: int
    """What comes from the segment before."""
    values_out: tuple[int, ...]
    """The bytes of each value that goes to the segment after."""
    sums: tuple[Together, ...] = ()
    """Which of these the ranks of a tensor group make one of before they go on: partial sums, say."""
    gradient_sums: tuple[Together, ...] = ()
    """Of which of the values that come from the segment before they do so with the gradients."""
    parted: tuple[str, ...] = ()
    """Parameters of which each rank of a tensor group has a part of its own. It has the others as all have them."""

    @property
    def bytes_out(self) -> int:
        return sum(self.values_out)

    @property
    def name(self) -> str:
        return self.first if self.first == self.last else f"{self.first} … {self.last}"
