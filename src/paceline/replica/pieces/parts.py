"""The smallest parts that a model can be cut into, whichever way they were found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

__all__ = ["MOST_TENSORS", "Arguments", "Compute", "Part", "Parts", "cannot_cross"]

MOST_TENSORS = 32
"""That may cross one cut."""
_MOST_DIMENSIONS = 4
"""Of a message."""


class Arguments(NamedTuple):
    """What a model is called with. Every rank can fetch it, so it never crosses a cut."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any = None
    """Where the loss is one of the model's parts."""


Compute = Callable[[Arguments | None, Sequence[Tensor]], Any]
"""Of the model's arguments and what crosses the cut before: what crosses the cut after, or the model's outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A layer, or one operation of a traced model."""

    name: str
    operations: float
    """What cuts are chosen by, of one sample."""
    crossing: tuple[int, ...]
    """The bytes of each value that goes over a cut after this part, of one sample."""
    flops: float = 0.0
    """Of matrix products, in a forward pass of one sample."""
    moved_bytes: float = 0.0
    """What all other operations of that pass read and write."""
    obstacle: str = ""
    """Why there can be no cut after this part. Empty: there can."""
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()

    @property
    def crossing_bytes(self) -> int:
        return sum(self.crossing)


def cannot_cross(value: Any) -> str:
    """Why a value cannot be sent over a cut. Empty: it can."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}, and only tensors cross a cut"
    if value.dim() > _MOST_DIMENSIONS:
        return (
            f"a tensor of {value.dim()} dimensions, and only those of at most {_MOST_DIMENSIONS} cross a cut"
        )
    if value.is_complex() or value.is_sparse:
        return "a complex or sparse tensor, and only plain ones cross a cut"
    return ""


class Parts(Protocol):
    """A model as a row of parts."""

    @property
    def parts(self) -> Sequence[Part]: ...

    def needs_arguments(self, start: int, stop: int) -> bool:
        """Whether parts `start` to `stop` need what the model is called with."""
        ...

    def compute(self, module: nn.Module, start: int, stop: int) -> Compute:
        """These parts as one function, with the parameters of `module`."""
        ...
