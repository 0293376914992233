"""Sign compression with error feedback: one bit for each number, and the mean magnitude of all.

Cost: n/8 bytes and 8 more. Ranks gather the codes of all, so a rank sends (p - 1) n/8 bytes.
Source: Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
ICML 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.codecs.codec import GradientCodec, check_floating

if TYPE_CHECKING:
    from torch import Tensor

_MEAN_BYTES = 8


@dataclass(frozen=True, slots=True)
class Sign(GradientCodec):
    """Sends the signs and their mean magnitude. The error is added to the next gradient."""

    def __str__(self) -> str:
        return "sign"

    def encode(
        self, tensor: Tensor, shapes: Sequence[Sequence[int]] = (), memory: Tensor | None = None
    ) -> Tensor:
        import torch

        check_floating(tensor)
        if tensor.is_meta:
            return torch.empty(_MEAN_BYTES + -(-tensor.numel() // 8), dtype=torch.uint8, device="meta")
        mean = tensor.abs().mean(dtype=torch.float64).reshape(1)
        bits = torch.from_numpy(np.packbits((tensor.view(-1) >= 0).cpu().numpy()))
        return torch.cat([mean.cpu().view(torch.uint8), bits])

    def decode(self, codes: Tensor, into: Tensor, shapes: Sequence[Sequence[int]] = ()) -> None:
        import torch

        if codes.is_meta:
            return
        mean = float(codes[:_MEAN_BYTES].clone().view(torch.float64))
        positive = torch.from_numpy(np.unpackbits(codes[_MEAN_BYTES:].numpy(), count=into.numel()))
        into.copy_(positive).mul_(2 * mean).sub_(mean)
