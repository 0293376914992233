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

import numpy as np

from paceline.codecs.codec import MessageCodec, check_floating
from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK = 256
_CHUNK = 2**16
"""Numbers that are encoded together: their temporary tensors fit in the cache. A multiple of a block."""
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
        codes = torch.empty(blocks + -(-length * self.bits // 8), dtype=torch.uint8)
        generator = np.random.SFC64(seed)
        for first in range(0, length, _CHUNK):
            part = tensor.view(-1)[first : first + _CHUNK]
            exponents, levels = self._encode_chunk(part, generator)
            codes[first // BLOCK :][: exponents.numel()] = exponents + 127
            codes[blocks + first * self.bits // 8 :][: levels.numel()] = levels
        return codes

    def _encode_chunk(self, tensor: Tensor, generator: np.random.SFC64) -> tuple[Tensor, Tensor]:
        """Return the binary logarithms of the blocks' steps, and the codes of the numbers."""
        import torch

        length = tensor.numel()
        padded = torch.zeros(-(-length // BLOCK) * BLOCK, dtype=torch.float32)
        padded[:length] = tensor
        rows = padded.view(-1, BLOCK)
        exponents = self._exponents(rows)
        rows.mul_(_power(-exponents)[:, None])
        # A whole number of steps plus noise below 1 is exact in float32, and is never rounded up.
        levels = padded[:length].add_(_noise(length, generator)).floor_().add_(self.levels).to(torch.uint8)
        return exponents, _paired(levels) if self.bits == 4 else levels

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


def _noise(length: int, generator: np.random.SFC64) -> Tensor:
    """Return random odd multiples of 2^-17 between 0 and 1. With them, the mean is exact to 2^-17 of a step."""
    import torch

    drawn = np.asarray(generator.random_raw(-(-length // 4))).view(np.int16)[:length]
    return torch.from_numpy(drawn).to(torch.float32).mul_(2.0**-16).add_(0.5 + 2.0**-17)


def _power(exponents: Tensor) -> Tensor:
    """Return these powers of two, exactly: the bits of a float32."""
    import torch

    return ((exponents + 127) << 23).to(torch.int32).view(torch.float32)


def _paired(codes: Tensor) -> Tensor:
    import torch

    if codes.numel() % 2:
        codes = torch.cat([codes, codes.new_full((1,), _PAD)])
    return (codes[::2] << 4).bitwise_or_(codes[1::2])


def _unpaired(pairs: Tensor) -> Tensor:
    import torch

    codes = torch.stack([pairs >> 4, pairs & 15], 1).view(-1)
    return codes[:-1] if codes.numel() and codes[-1] == _PAD else codes
