"""Top-k sparsification with error feedback: the numbers of largest magnitude are sent, the others wait.

`momentum` is a momentum correction: each rank encodes its velocity (momentum times the last velocity, plus the
gradient) in place of its gradient, and clears the velocity of numbers that are sent. Give the momentum here, and none
to the optimizer.

Cost: k numbers and their positions (4 bytes each), k = ratio x n. Ranks gather the codes of all, so a rank sends
(p - 1) k (b + 4) bytes, with b bytes a number.
Sources: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018; momentum correction: Lin, Han, Mao, Wang,
Dally, "Deep Gradient Compression", ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.codecs.codec import GradientCodec, check_floating
from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor

_PLACE_BYTES = 4


@dataclass(frozen=True, slots=True)
class TopK(GradientCodec):
    """Sends the numbers of largest magnitude, this fraction of all. The others are added to the next gradient."""

    ratio: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ConfigurationError("ratio", "must be above 0 and at most 1", self.ratio, "try 0.01")
        if not 0 <= self.momentum < 1:
            bound = "must be at least 0 and below 1"
            raise ConfigurationError("momentum", bound, self.momentum, "0 is no momentum correction")

    def __str__(self) -> str:
        return f"topk-{self.ratio:g}" + (f"-{self.momentum:g}" if self.momentum else "")

    def count(self, length: int) -> int:
        """Return how many of `length` elements are sent."""
        return min(length, max(1, round(self.ratio * length)))

    def encode(
        self, tensor: Tensor, shapes: Sequence[Sequence[int]] = (), memory: Tensor | None = None
    ) -> Tensor:
        import torch

        check_floating(tensor)
        count = self.count(tensor.numel())
        if tensor.is_meta:
            nbytes = count * (tensor.itemsize + _PLACE_BYTES)
            return torch.empty(nbytes, dtype=torch.uint8, device="meta")
        flat = tensor.view(-1)
        places = torch.topk(flat.abs(), count, sorted=False).indices
        parts = (flat[places], places.to(torch.int32))
        return torch.cat([part.cpu().view(torch.uint8) for part in parts])

    def decode(self, codes: Tensor, into: Tensor, shapes: Sequence[Sequence[int]] = ()) -> None:
        import torch

        if codes.is_meta:
            return
        split = self.count(into.numel()) * into.itemsize
        values = codes[:split].clone().view(into.dtype)
        places = codes[split:].clone().view(torch.int32).long()
        into.zero_()[places.to(into.device)] = values.to(into.device)
