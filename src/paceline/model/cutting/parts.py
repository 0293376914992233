"""Parts: the smallest units that a model can be cut into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

MOST_TENSORS = 32
"""Maximum number of tensors that cross one cut."""
_MOST_DIMENSIONS = 4
"""Maximum number of dimensions of a message."""


class Arguments(NamedTuple):
    """Arguments of a model. Every rank can load them, so they are never sent across a cut."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any = None
    """Target of the loss, if the loss is one of the model's parts."""


Compute = Callable[[Arguments | None, Sequence[Tensor]], Any]
"""Function of the model's arguments and the values from the cut before. It returns the values for the next cut, or the
model's outputs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A layer, or one operation of a traced model."""

    name: str
    operations: float
    """Cost of one sample, used to choose cuts."""
    crossing: tuple[int, ...]
    """Bytes of each value that crosses a cut after this part, for one sample."""
    flops: float = 0.0
    """Flops of matrix products in a forward pass of one sample."""
    moved_bytes: float = 0.0
    """Bytes that all other operations of that pass read and write."""
    launches: int = 0
    """Number of operations in a forward pass of any number of samples."""
    weight_bytes: float = 0.0
    """Bytes of weights that matrix products read in that pass."""
    obstacle: str = ""
    """Reason why no cut is possible after this part. Empty if a cut is possible."""
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()

    @property
    def crossing_bytes(self) -> int:
        return sum(self.crossing)


def cannot_cross(value: Any) -> str:
    """Return the reason why a value cannot be sent across a cut. Empty if it can."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}, but only tensors can cross a cut"
    if value.dim() > _MOST_DIMENSIONS:
        return f"a tensor of {value.dim()} dimensions, but at most {_MOST_DIMENSIONS} can cross a cut"
    if value.is_complex() or value.is_sparse:
        return "a complex or sparse tensor, but only dense real tensors can cross a cut"
    return ""


class Parts(Protocol):
    """A model as a sequence of parts."""

    @property
    def parts(self) -> Sequence[Part]: ...

    def needs_arguments(self, start: int, stop: int) -> bool:
        """Return whether parts `start` to `stop` need the model's arguments."""
        ...

    def compute(self, module: nn.Module, start: int, stop: int) -> Compute:
        """Return these parts as one function that uses the parameters of `module`."""
        ...
