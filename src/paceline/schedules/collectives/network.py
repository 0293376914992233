"""Costs of messages and links for the timers: bytes of a range of chunks, latency and speed of a link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigurationError
from paceline.schedules.collectives.plan import Ints, chunk_offsets

Floats = npt.NDArray[np.float64]
PerMessage = Callable[[Ints, Ints], Floats]

LinkCost = float | Floats | PerMessage
"""A cost of links: one number for all; a matrix [source, target]; or a function of arrays of sources and targets."""


@dataclass(frozen=True, eq=False, slots=True)
class NetworkCosts:
    """Cost functions. Each maps arrays with one element per message to an array."""

    size_bytes: PerMessage
    """Bytes, from the first chunk and the chunk after the last."""
    latency_s: PerMessage
    """Latency, from source and target."""
    seconds_per_byte: PerMessage
    """Seconds per byte, from source and target."""


def chunk_bytes(
    length: int, itemsize: int, chunks: int, scratch: int, bounds: Sequence[int] | None = None
) -> PerMessage:
    """Return the function for the bytes of chunk ranges of `length` elements, cut at `bounds` if given."""
    if length < 0:
        raise ConfigurationError("length", "must be at least 0", length)
    offsets = (chunk_offsets(length, chunks, scratch, bounds) * itemsize).astype(np.float64)
    return lambda starts, stops: offsets.take(stops) - offsets.take(starts)


def link_cost(cost: LinkCost, name: str, size: int) -> PerMessage:
    """Convert any form of a link cost to a function. Raise an error for negative costs or a wrong matrix size."""
    if callable(cost):
        return cost
    values = np.asarray(cost, np.float64)
    if values.ndim and values.shape != (size, size):
        raise ConfigurationError(name, f"must be one number or {size} x {size} numbers", values.shape)
    if not (values >= 0).all():
        raise ConfigurationError(name, "must be at least 0", float(values.min()))
    if values.ndim == 0:
        return lambda sources, targets: np.full(len(sources), values)
    return lambda sources, targets: values[sources, targets]
