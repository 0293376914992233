"""A run of a model's layers, in forward order: what a rank may hold of a model instead of all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["Joining", "Segment", "Together"]

Joining = Literal["sum", "max", "scatter", "gather", "take"]
"""What the ranks of a tensor group make of a value that each of them has.

Of values that lie whole on each rank: the sum or the maximum, on all of them; scatter: each its part of the sum; take:
each its part of the value, which is the same on all. Gather: of the parts the whole. Parts are of the first dimension.
"""


class Together(NamedTuple):
    """A value that goes over a cut, and what the ranks of a tensor group do with it there."""

    place: int
    """Among the values that go over it."""
    how: Joining = "sum"
    dim: int = 0
    """Where the parts lie in the model's own value. Over a cut that dimension is the first."""
    length: int = 0
    """Of that dimension of the whole value."""


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

    partial: tuple[str, ...] = ()
    """Of those, parameters that each rank uses for its part of the sequence: they sum the gradients."""

    @property
    def bytes_out(self) -> int:
        return sum(self.values_out)

    @property
    def name(self) -> str:
        return self.first if self.first == self.last else f"{self.first} … {self.last}"
