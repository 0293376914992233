"""Layout of a replica's flat tensors: the offset of each parameter, buckets and shards."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from paceline.context import BUCKET_BYTES
from paceline.schedules.collectives.steps import chunk_bounds


@dataclass(frozen=True, slots=True)
class Within:
    """The part of a whole parameter that a replica stores: one or more ranges along a dimension."""

    shape: torch.Size
    """Shape of the whole parameter."""
    dim: int
    stretches: tuple[tuple[int, int], ...]
    """Start and end of each range."""

    def of(self, whole: Tensor) -> Tensor:
        """Return this part of a whole tensor."""
        parts = [whole.narrow(self.dim, a, b - a) for a, b in self.stretches]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)


@dataclass(frozen=True, slots=True)
class Layout:
    """The trainable parameters of a module, concatenated in the order of registration."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]
    """Offset of each parameter, followed by the total length."""
    dtypes: tuple[torch.dtype, ...]
    """Dtype of each parameter in its module."""
    dtype: torch.dtype
    """Dtype of the flat tensors: real, and the widest of all parameters."""
    within: Mapping[str, Within] = field(default_factory=dict)
    """For each split parameter, by name: the part that is stored."""

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        names = tuple(name for name, _ in named)
        offsets = itertools.accumulate((real_view(p).numel() for _, p in named), initial=0)
        dtypes = tuple(p.dtype for _, p in named)
        # A part of a model may have no parameters.
        reals = [dtype.to_real() for dtype in dtypes] or [torch.get_default_dtype()]
        widest = functools.reduce(torch.promote_types, reals)
        return cls(names, tuple(p.shape for _, p in named), tuple(offsets), dtypes, widest)

    def narrowed(self, names: Iterable[str]) -> Layout:
        """Return the layout of these parameters, in the order given."""
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
    def real_shapes(self) -> list[tuple[int, ...]]:
        """Shapes in the flat tensors: a complex number is a pair of numbers."""
        return [
            (*shape, 2) if dtype.is_complex else tuple(shape)
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        return self.length * self.dtype.itemsize

    @property
    def copy_bytes(self) -> int:
        """Bytes of the parameters that a module cannot store as views of the flat tensor: see `Binding`."""
        return sum(
            shape.numel() * dtype.itemsize
            for shape, dtype, offset in zip(self.shapes, self.dtypes, self.offsets[:-1], strict=True)
            if dtype != self.dtype and not can_be_complex(self.dtype, dtype, offset)
        )

    @property
    def is_plain(self) -> bool:
        """Whether every parameter has the dtype of the flat tensors."""
        return all(dtype == self.dtype for dtype in self.dtypes)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return a view of each parameter in a flat tensor. The view of a complex parameter has pairs of numbers."""
        return [
            self.view(flat[a:b], number) for number, (a, b) in enumerate(itertools.pairwise(self.offsets))
        ]

    def view(self, part: Tensor, number: int) -> Tensor:
        """Return a parameter's range of a flat tensor, in the shape of the parameter."""
        shape = self.shapes[number]
        return part.view(*shape, 2) if self.dtypes[number].is_complex else part.view(shape)

    def buckets(self, bucket_bytes: int = BUCKET_BYTES) -> list[range]:
        """Return buckets of about `bucket_bytes` each: consecutive whole parameters, as ranges of parameter
        numbers."""
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
        """Return shards of nearly equal length that may split a parameter: only for elementwise optimizers."""
        return [slice(a, b) for a, b in itertools.pairwise(chunk_bounds(self.length, parts))]

    def whole_shards(self, parts: int) -> list[slice]:
        """Return shards of whole parameters, as even as possible. Some may be empty."""
        cuts = [self._nearest_offset(bound) for bound in chunk_bounds(self.length, parts)]
        return [slice(a, b) for a, b in itertools.pairwise(cuts)]

    def _nearest_offset(self, position: int) -> int:
        return min(self.offsets, key=lambda offset: abs(offset - position))


def can_be_complex(real: torch.dtype, dtype: torch.dtype, offset: int) -> bool:
    """Return whether pairs of real numbers can be viewed as complex numbers. This needs an even offset."""
    return dtype.is_complex and dtype.to_real() == real and offset % 2 == 0


def real_view(tensor: Tensor) -> Tensor:
    """Return a view of complex numbers as pairs of real numbers; a real tensor itself."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()


def flatten(
    tensors: Sequence[Tensor], dtype: torch.dtype, device: torch.device, part: slice | None = None
) -> Tensor:
    """Return a flat copy of several tensors, or of one range of their concatenation. Only this range is read."""
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
