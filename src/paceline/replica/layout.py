"""Where each parameter lies in a replica's flat tensors, and how those are cut into buckets and shards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.context import BUCKET_BYTES
from paceline.errors import ConfigurationError
from paceline.schedules.steps import chunk_bounds

__all__ = ["Layout", "flatten"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The trainable parameters of a module, one after another, in the order of registration."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]
    """Where each parameter begins, and at the end the whole length."""
    dtype: torch.dtype

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        dtypes = {p.dtype for _, p in named}
        if len(dtypes) > 1:
            found = ", ".join(sorted(map(str, dtypes)))
            raise ConfigurationError(
                "model's trainable parameters",
                "must have one dtype",
                found,
                "convert it with model.to(dtype)",
            )
        offsets = itertools.accumulate((p.numel() for _, p in named), initial=0)
        names = tuple(name for name, _ in named)
        return cls(names, tuple(p.shape for _, p in named), tuple(offsets), dtypes.pop())

    @property
    def length(self) -> int:
        return self.offsets[-1]

    @property
    def nbytes(self) -> int:
        return self.length * self.dtype.itemsize

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each parameter's part of a flat tensor, in the parameter's own shape."""
        spans = itertools.pairwise(self.offsets)
        return [flat[a:b].view(shape) for (a, b), shape in zip(spans, self.shapes, strict=True)]

    def buckets(self, bucket_bytes: int = BUCKET_BYTES) -> list[range]:
        """Runs of whole parameters, as ranges of parameter numbers, each of about `bucket_bytes`."""
        runs: list[range] = []
        start, filled = 0, 0
        for i, (a, b) in enumerate(itertools.pairwise(self.offsets)):
            filled += (b - a) * self.dtype.itemsize
            if filled >= bucket_bytes:
                runs.append(range(start, i + 1))
                start, filled = i + 1, 0
        if start < len(self.names):
            runs.append(range(start, len(self.names)))
        return runs

    def even_shards(self, parts: int) -> list[slice]:
        """Shards of nearly equal length, cut anywhere: right for optimizers that work element by element."""
        return [slice(a, b) for a, b in itertools.pairwise(chunk_bounds(self.length, parts))]

    def whole_shards(self, parts: int) -> list[slice]:
        """Shards cut between parameters only, as even as that allows. Some may be empty."""
        cuts = [self._nearest_offset(bound) for bound in chunk_bounds(self.length, parts)]
        return [slice(a, b) for a, b in itertools.pairwise(cuts)]

    def _nearest_offset(self, position: int) -> int:
        return min(self.offsets, key=lambda offset: abs(offset - position))


def flatten(tensors: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """One flat copy of several tensors."""
    flat = torch.empty(sum(t.numel() for t in tensors), dtype=dtype, device=device)
    at = 0
    for tensor in tensors:
        flat[at : at + tensor.numel()].copy_(tensor.detach().reshape(-1))
        at += tensor.numel()
    return flat
