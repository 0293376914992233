"""A segment: consecutive layers of a model, in forward order. A rank may hold segments instead of the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

ReduceKind = Literal["sum", "max", "scatter", "gather", "take"]
"""How the ranks of a tensor group combine their values.

- sum, max: reduce over all ranks. Every rank gets the whole result.
- scatter: sum over all ranks. Each rank gets its part of the sum.
- take: each rank takes its part of a value that is the same on all ranks.
- gather: concatenate the parts of all ranks. Every rank gets the whole value.

Parts are slices along the first dimension.
"""


class GroupReduction(NamedTuple):
    """A value that crosses a cut, and how the ranks of a tensor group combine it there."""

    place: int
    """Index of the value among those that cross the cut."""
    how: ReduceKind = "sum"
    dim: int = 0
    """Dimension that is split, in the model's layout. At the cut this dimension is the first."""
    length: int = 0
    """Size of that dimension in the whole value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Static description of a segment. Bytes and operations are per sample."""

    number: int
    stage: int
    """Stage of this segment. A rank holds all segments of one or several stages."""
    first: str
    """Name of the first layer."""
    last: str
    parameters: tuple[str, ...]
    """Names of all parameters in use. A tied parameter is in several segments."""
    buffers: tuple[str, ...]
    parameter_count: int
    operations: float
    """Cost of a forward pass in floating-point operations. Includes an amount for moving the outputs."""
    flops: float = 0.0
    """Floating-point operations of the matrix products in a forward pass."""
    moved_bytes: float = 0.0
    """Bytes read and written by all other operations of that pass."""
    launches: int = 0
    """Number of operations in a forward pass of any number of samples."""
    weight_bytes: float = 0.0
    """Bytes of weights that matrix products read in that pass."""
    share: float
    """Fraction of the whole model's operations."""
    bytes_in: int
    """Bytes received from the previous segment."""
    values_out: tuple[int, ...]
    """Bytes of each value sent to the next segment."""
    reductions: tuple[GroupReduction, ...] = ()
    """Outputs that the tensor group combines before the next segment, such as partial sums."""
    gradient_reductions: tuple[GroupReduction, ...] = ()
    """Inputs whose gradients the tensor group reduces."""
    parted: tuple[str, ...] = ()
    """Parameters that are split: each rank of a tensor group holds its own shard. All others are replicated."""

    is_block: bool = False
    """Whether this is a group of blocks of an uncut model. Ranks may call the groups in any order."""

    partial: tuple[str, ...] = ()
    """Parameters used on sequence shards only. The tensor group sums their gradients."""

    def gradient_reductions_of(self, wanted: Sequence[bool]) -> list[GroupReduction]:
        """Return the reductions of the gradients that exist. `wanted` states which inputs need one."""
        return [
            each._replace(place=sum(wanted[: each.place]))
            for each in self.gradient_reductions
            if wanted[each.place]
        ]

    @property
    def bytes_out(self) -> int:
        return sum(self.values_out)

    @property
    def name(self) -> str:
        return self.first if self.first == self.last else f"{self.first} … {self.last}"
