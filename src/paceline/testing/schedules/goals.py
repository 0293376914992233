"""The postcondition of each collective: which rank must have which data at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple


class Demand(NamedTuple):
    """`rank` must have, in its chunk `place`, the sum of `chunk` over the `contributors` (a bit mask of ranks)."""

    rank: int
    place: int
    contributors: int
    chunk: int


Demands = Iterator[Demand]


def _all_reduce(size: int, chunks: int, root: int) -> Demands:
    return (Demand(r, c, _everyone(size), c) for r in range(size) for c in range(chunks))


def _reduce(size: int, chunks: int, root: int) -> Demands:
    return (Demand(root, c, _everyone(size), c) for c in range(chunks))


def _broadcast(size: int, chunks: int, root: int) -> Demands:
    return (Demand(r, c, 1 << root, c) for r in range(size) for c in range(chunks))


def _all_gather(size: int, chunks: int, root: int) -> Demands:
    return (Demand(r, c, 1 << c, c) for r in range(size) for c in range(size))


def _reduce_scatter(size: int, chunks: int, root: int) -> Demands:
    return (Demand(r, r, _everyone(size), r) for r in range(size))


def _scatter(size: int, chunks: int, root: int) -> Demands:
    return (Demand(r, r, 1 << root, r) for r in range(size))


def _gather(size: int, chunks: int, root: int) -> Demands:
    return (Demand(root, c, 1 << c, c) for c in range(size))


def _all_to_all(size: int, chunks: int, root: int) -> Demands:
    return (Demand(r, c, 1 << c, r) for r in range(size) for c in range(size))


def _barrier(size: int, chunks: int, root: int) -> Demands:
    return iter(())  # a barrier synchronizes and moves no data


def _everyone(size: int) -> int:
    return (1 << size) - 1


GOALS: Mapping[str, Callable[[int, int, int], Demands]] = MappingProxyType(
    {
        "all-gather": _all_gather,
        "all-reduce": _all_reduce,
        "all-to-all": _all_to_all,
        "barrier": _barrier,
        "broadcast": _broadcast,
        "gather": _gather,
        "reduce": _reduce,
        "reduce-scatter": _reduce_scatter,
        "scatter": _scatter,
    }
)
"""The demands of each goal, as a function of the group size, the number of chunks and the root."""

CHUNK_PER_RANK = frozenset({"all-gather", "all-to-all", "gather", "reduce-scatter", "scatter"})
"""Goals in which chunk r belongs to rank r, so that there must be as many chunks as ranks."""
