"""A few numbers that identify samples, losses and weights, to check whether a resumed run has the same ones.

Floats are compared with a tolerance: another processor or another number of threads rounds differently. Integers, texts
and weights are compared exactly, by a hash.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_RELATIVE, _ABSOLUTE = 1e-3, 1e-5
"""Tolerances, relative to the number itself and to the largest number in its list."""
_ELEMENTS = 32
_LEAVES = 16


def spread(length: int, count: int) -> np.ndarray:
    """Return up to `count` positions from 0 to `length` - 1, evenly spread."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).astype(np.int64))


def sketch(content: Any) -> dict[str, Any]:
    """Return a sketch of each tensor, number and text in a batch, by its path. Other objects are left out."""
    found: dict[str, Any] = {}
    for name, leaf in _leaves(content, ""):
        value = _of(leaf)
        if value is not None:
            found[name] = value
        if len(found) == _LEAVES:
            break
    return found


def _leaves(content: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner: Any = ()
    if isinstance(content, Mapping):
        inner = content.items()
    elif isinstance(content, tuple | list):
        inner = enumerate(content)
    else:
        yield name, content
    for key, each in inner:
        yield from _leaves(each, f"{name}.{key}" if name else str(key))


def _of(leaf: Any) -> Any:
    if isinstance(leaf, bool | int | str | bytes):
        return _digest(repr(leaf).encode())
    if isinstance(leaf, float):
        return ["float", rounded([leaf])]
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
        leaf = torch.from_numpy(np.ascontiguousarray(leaf))
    if not isinstance(leaf, Tensor) or leaf.layout != torch.strided:
        return None
    leaf = torch.view_as_real(leaf) if leaf.is_complex() else leaf.detach()
    look = f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"
    if not leaf.is_floating_point():
        return [look, _digest(leaf.contiguous().numpy(force=True).tobytes())]
    flat = leaf.double().flatten()
    mean = [flat.abs().mean().item()] if len(flat) else []
    return [look, rounded([*flat[spread(len(flat), _ELEMENTS)].tolist(), *mean])]


def rounded(values: Sequence[float]) -> list[float | None]:
    """Return the values rounded to six digits. None for values that are not finite."""
    return [float(f"{each:.6g}") if math.isfinite(each) else None for each in values]


def is_same(before: Any, now: Any) -> bool:
    """Return whether two sketches match."""
    if before == now or not isinstance(before, list) or not isinstance(now, list):
        return bool(before == now)
    lists = isinstance(before[1], list) and isinstance(now[1], list)
    return before[0] == now[0] and lists and are_close(before[1], now[1])


def are_close(before: Sequence[float | None], now: Sequence[float | None]) -> bool:
    """Return whether the numbers differ only by rounding."""
    if len(before) != len(now):
        return False
    largest = max((abs(each) for each in (*before, *now) if each is not None), default=0.0)
    return all(
        a == b
        or (
            a is not None
            and b is not None
            and math.isclose(a, b, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE * largest)
        )
        for a, b in zip(before, now, strict=True)
    )


def weights_digest(module: nn.Module) -> str:
    """Return a hash of some elements of each parameter and buffer."""
    hashed = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        hashed.update(name.encode())
        if isinstance(tensor, Tensor) and tensor.numel():
            some = tensor.detach().flatten()[spread(tensor.numel(), _ELEMENTS)]
            hashed.update(some.double().numpy(force=True).tobytes() if not some.is_complex() else b"")
    return hashed.hexdigest()[:16]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
