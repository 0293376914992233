"""16-bit floating point: each number is rounded to bfloat16 or to IEEE half precision.

bf16 has the range of float32 and 8 bits of precision. fp16 has 11 bits; larger magnitudes than 65,504 become 65,504,
and magnitudes below 3e-8 become 0. Cost: 2 bytes for each number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.codecs.codec import MessageCodec, check_floating
from paceline.errors import UnknownNameError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORMATS = ("bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Cast(MessageCodec):
    """Rounds each number to 16 bits."""

    is_elementwise = True

    format: str

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise UnknownNameError("format", self.format, FORMATS)

    def __str__(self) -> str:
        return self.format

    def encode(self, tensor: Tensor, seed: int = 0) -> Tensor:
        import torch

        check_floating(tensor)
        if self.format == "bf16":
            return tensor.to(torch.bfloat16)
        most = torch.finfo(torch.float16).max
        return tensor.clamp(-most, most).to(torch.float16)

    def decode(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        return codes.to(dtype)
