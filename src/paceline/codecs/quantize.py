"""Stochastic quantization: whole multiples of a step, rounded up or down at random, so that the mean is exact.

A block of numbers has one step: the smallest power of two for which 127 steps (7 with 4 bits) reach the block's
largest magnitude. Because the step is a power of two, values that have been decoded are encoded again without error,
so every rank of a collective ends with the same values.

Cost: 1 byte (int8) or half a byte (int4) for each number, and 1 byte for each block of 256.
Source: Alistarh et al., "QSGD", NeurIPS 2017. There a block is scaled by its Euclidean norm, here by its maximum, which
has a smaller variance: at most n/s^2 of the squared norm of n numbers, with s = 127 or 7 levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.codecs.codec import MessageCodec, check_floating
from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK = 256
_BITS = (4, 8)
_LEAST_EXPONENT = -126  # a smaller step is subnormal in float32
_PAD = 15  # an int4 code that no number has: it marks an odd length


@dataclass(frozen=True, slots=True)
class QSGD(MessageCodec):
    """Rounds each number at random to a multiple of its block's step."""

    bits: int

    def __post_init__(self) -> None:
        if self.bits not in _BITS:
            raise ConfigurationError("bits", "must be 4 or 8", self.bits)

    def __str__(self) -> str:
        return f"int{self.bits}"

    @property
    def levels(self) -> int:
        return (1 << self.bits - 1) - 1

    def encode(self, tensor: Tensor, seed: int = 0) -> Tensor:
        import torch

        check_floating(tensor)
        length = tensor.numel()
        blocks = -(-length // BLOCK)
        if tensor.is_meta:
            return torch.empty(blocks + -(-length * self.bits // 8), dtype=torch.uint8, device="meta")
        padded = torch.zeros(blocks * BLOCK, dtype=torch.float32)
        padded[:length] = tensor.view(-1)
        rows = padded.view(blocks, BLOCK)
        exponents = self._exponents(rows)
        rows.mul_(_power(-exponents)[:, None])
        scaled = padded[:length]
        lower = scaled.floor()
        noise = torch.rand(length, generator=torch.Generator().manual_seed(seed))
        # A whole number of steps has no fraction, and is never rounded up.
        codes = lower.add_(noise < scaled.sub_(lower)).add_(self.levels).to(torch.uint8)
        if self.bits == 4:
            codes = _paired(codes)
        return torch.cat([(exponents + 127).to(torch.uint8), codes])

    def _exponents(self, rows: Tensor) -> Tensor:
        """Return the binary logarithm of each block's step."""
        import torch

        largest = torch.amax(rows.abs(), 1)
        mantissas, exponents = torch.frexp(largest / self.levels)
        exponents = (exponents - (mantissas == 0.5).int()).clamp_(_LEAST_EXPONENT, -_LEAST_EXPONENT)
        # The division may have rounded down.
        exponents += (_power(exponents) * self.levels < largest).int()
        return exponents.clamp_(_LEAST_EXPONENT, -_LEAST_EXPONENT)

    def decode(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        import torch

        blocks = self._blocks(codes.numel())
        exponents, levels = codes[:blocks], codes[blocks:]
        if codes.is_meta:
            return torch.empty(levels.numel() * 8 // self.bits, dtype=dtype, device="meta")
        if self.bits == 4:
            levels = _unpaired(levels)
        steps = _power(exponents.int() - 127).repeat_interleave(BLOCK)[: levels.numel()]
        return levels.to(torch.float32).sub_(self.levels).mul_(steps).to(dtype)

    def _blocks(self, code_bytes: int) -> int:
        """Return the number of blocks. A block has a byte for its step, and the bytes of its numbers."""
        return -(-code_bytes // (1 + BLOCK * self.bits // 8))


def _power(exponents: Tensor) -> Tensor:
    """Return these powers of two, exactly: the bits of a float32."""
    import torch

    return ((exponents + 127) << 23).to(torch.int32).view(torch.float32)


def _paired(codes: Tensor) -> Tensor:
    import torch

    if codes.numel() % 2:
        codes = torch.cat([codes, codes.new_full((1,), _PAD)])
    return codes[::2] * 16 + codes[1::2]


def _unpaired(pairs: Tensor) -> Tensor:
    import torch

    codes = torch.stack([pairs // 16, pairs % 16], 1).view(-1)
    return codes[:-1] if codes.numel() and codes[-1] == _PAD else codes
