"""The two kinds of codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class MessageCodec(ABC):
    """A codec that works on each message, and keeps no state."""

    is_elementwise: bool = False
    """Whether the code of a number depends on this number only."""

    @abstractmethod
    def encode(self, tensor: Tensor, seed: int = 0) -> Tensor:
        """Return the codes of a flat tensor. Encoding decoded values again changes none of them.

        Equal seeds give equal codes. Without values (meta tensors), return codes without values.
        """

    @abstractmethod
    def decode(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the decoded values, in new memory."""


class GradientCodec(ABC):
    """A codec of whole gradients. Its error is added to the next gradient."""

    momentum: float = 0.0
    """Factor of the velocity that is encoded in place of the gradient (momentum correction). 0 for none."""

    @abstractmethod
    def encode(
        self, tensor: Tensor, shapes: Sequence[Sequence[int]] = (), memory: Tensor | None = None
    ) -> Tensor:
        """Return the codes of a flat tensor, as bytes.

        `shapes` are those of its consecutive parameters; all values are in one of them. `memory` is the state of the
        codec, of `memory_length` elements, which it may change.
        """

    @abstractmethod
    def decode(self, codes: Tensor, into: Tensor, shapes: Sequence[Sequence[int]] = ()) -> None:
        """Write the decoded values into a flat tensor."""

    def memory_length(self, shapes: Sequence[Sequence[int]]) -> int:
        """Return the number of elements of state that this codec keeps for these parameters."""
        return 0


def check_floating(tensor: Tensor) -> None:
    """Refuse tensors of integers."""
    if not tensor.is_floating_point():
        bound = "must have a floating-point dtype: a codec rounds its values"
        raise ConfigurationError("tensor", bound, str(tensor.dtype), "send it without a codec")
