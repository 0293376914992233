"""Where each parameter lies in a replica's flat tensors, and how those are cut into buckets and shards."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from paceline.context import BUCKET_BYTES
from paceline.schedules.steps import chunk_bounds

__all__ = ["Layout", "Within", "blank", "flatten", "real_view"]


@dataclass(frozen=True, slots=True)
class Within:
    """Which part of a whole parameter a replica has: some stretches along a dimension, one after the other."""

    shape: torch.Size
    """Of the whole."""
    dim: int
    stretches: tuple[tuple[int, int], ...]
    """From and to."""

    def of(self, whole: Tensor) -> Tensor:
        """That part of a whole tensor."""
        parts = [whole.narrow(self.dim, a, b - a) for a, b in self.stretches]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)


@dataclass(frozen=True, slots=True)
class Layout:
    """The trainable parameters of a module, one after another, in the order of registration."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]
    """Where each parameter begins, and at the end the whole length."""
    dtypes: tuple[torch.dtype, ...]
    """Of each parameter in its module."""
    dtype: torch.dtype
    """Of the flat tensors: real, and the widest of all."""
    within: Mapping[str, Within] = field(default_factory=dict)
    """Of parameters that are parts of larger ones, by name: which."""

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        names = tuple(name for name, _ in named)
        offsets = itertools.accumulate((real_view(p).numel() for _, p in named), initial=0)
        dtypes = tuple(p.dtype for _, p in named)
        # A part of a model may have none.
        reals = [dtype.to_real() for dtype in dtypes] or [torch.get_default_dtype()]
        widest = functools.reduce(torch.promote_types, reals)
        return cls(names, tuple(p.shape for _, p in named), tuple(offsets), dtypes, widest)

    def narrowed(self, names: Iterable[str]) -> Layout:
        """Of these parameters only, in the order given."""
        places = {name: number for number, name in enumerate(self.names)}
        numbers = [places[name] for name in names]
        lengths = (self.offsets[number + 1] - self.offsets[number] for number in numbers)
        return Layout(
            tuple(self.names[number] for number in numbers),
            tuple(self.shapes[number] for number in numbers),
            tuple(itertools.accumulate(lengths, initial=0)),
            tuple(self.dtypes[number] for number in numbers),
            self.dtype,
            {name: within for name, within in self.within.items() if name in places},
        )

    @property
    def length(self) -> int:
        return self.offsets[-1]

    @property
    def nbytes(self) -> int:
        return self.length * self.dtype.itemsize

    @property
    def is_plain(self) -> bool:
        """Whether every parameter has the dtype of the flat tensors."""
        return all(dtype == self.dtype for dtype in self.dtypes)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each parameter's part of a flat tensor, in its own shape; of a complex one as pairs of numbers."""
        return [
            self.view(flat[a:b], number) for number, (a, b) in enumerate(itertools.pairwise(self.offsets))
        ]

    def view(self, part: Tensor, number: int) -> Tensor:
        """A part of a flat tensor in the shape of the parameter whose part it is."""
        shape = self.shapes[number]
        return part.view(*shape, 2) if self.dtypes[number].is_complex else part.view(shape)

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


def real_view(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones; what is real as it is."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()


def flatten(
    tensors: Sequence[Tensor], dtype: torch.dtype, device: torch.device, part: slice | None = None
) -> Tensor:
    """One flat copy of several tensors, or of a part of what they make up: nothing else is read then."""
    reals = [real_view(tensor) for tensor in tensors]
    wanted = slice(0, sum(real.numel() for real in reals)) if part is None else part
    flat = torch.empty(wanted.stop - wanted.start, dtype=dtype, device=device)
    at = 0
    for real in reals:
        low, high = max(at, wanted.start), min(at + real.numel(), wanted.stop)
        if low < high:
            flat[low - wanted.start : high - wanted.start].copy_(real.reshape(-1)[low - at : high - at])
        at += real.numel()
    return flat


def blank(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A flat tensor of that length that takes no memory: nothing can be written into it."""
    return torch.empty(1, dtype=dtype, device=device).expand(length)
