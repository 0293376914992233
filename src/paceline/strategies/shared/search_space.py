"""The values that a planner tries for the parameters of a strategy.

A strategy declares them beside each field: `field(default=1, metadata={"help": …, "tries": Tried(fractions)})`. The
planner tries all combinations of leading fields, and then changes one field at a time. It tries no other value of a
field that declares nothing.

A class may also have a method `unsuited(scope)`, which returns the reason not to try it there, or an empty text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.strategies.shared.pipelining.program import Plan

MICROBATCH_SAMPLES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The cluster and the task that a strategy is tried for."""

    workers: int
    per_host: int
    """Ranks on the fullest host."""
    batch_size: int
    shares_memory: bool = False
    """Whether all ranks share memory."""


Values = Callable[[Scope, Any], Iterable[object]]
"""Return the values of one field, for a scope and a strategy. A mapping replaces several fields
at once."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The values to try for one field."""

    values: Values
    leading: Values | None = None
    """The values that are combined with other leading fields. None if this field is not leading."""


def tried(*values: object, leads: bool = False) -> Tried:
    """Try these values in every scope."""

    def given(scope: Scope, strategy: Any) -> Iterable[object]:
        return values

    return Tried(given, given if leads else None)


def fractions(scope: Scope, strategy: Any) -> Iterable[int]:
    """Return numbers of workers to wait for: one, about a quarter, a half, three quarters, and almost all."""
    n = scope.workers
    return sorted({each for each in (1, n // 4, n // 2, 3 * n // 4, n - 2, n - 1) if 1 <= each < n})


def tensor_sizes(scope: Scope, strategy: Any) -> Iterable[int]:
    """Return divisors of the workers that fit into one host: powers of two, and the whole host."""
    sizes = {*_powers(scope.per_host), scope.per_host}
    return sorted(size for size in sizes if scope.workers % size == 0)


def stage_counts(scope: Scope, strategy: Any) -> Iterable[int]:
    """Return powers of two, and three times such a power, that divide the workers."""
    counts = {*_powers(scope.workers), *(3 * each for each in _powers(scope.workers // 3)), scope.workers}
    return sorted(count for count in counts if scope.workers % count == 0)


def server_counts(scope: Scope, strategy: Any) -> Iterable[Mapping[str, object]]:
    """Return numbers of server nodes, up to one for each worker."""
    counts = [each for each in (1, 2, 4, 8, 16) if each <= scope.workers]
    return [{"servers": each, "placement": "servers"} for each in counts]


def microbatch_counts(scope: Scope, strategy: Any) -> Iterable[int]:
    """Return numbers of micro-batches, for micro-batches of 1 to 16 samples."""
    row = _samples_of_row(scope, strategy)
    return sorted({-(-row // size) for size in MICROBATCH_SAMPLES if size <= row}, reverse=True)


def smallest_microbatches(scope: Scope, strategy: Any) -> Iterable[int]:
    """Return the numbers of micro-batches of one and of four samples."""
    row = _samples_of_row(scope, strategy)
    return sorted({row, -(-row // 4)}, reverse=True)


def _samples_of_row(scope: Scope, strategy: Any) -> int:
    """Return the samples of a row. A mesh that is too large for the workers has no row, and counts as one."""
    plan: Plan = strategy.plan(scope.workers)
    return max(1, scope.batch_size // max(1, plan.data))


def _powers(most: int) -> list[int]:
    return [2**exponent for exponent in range(most.bit_length())]


_ORDERS: tuple[Mapping[str, object], ...] = (
    {"order": "1f1b", "chunks": 1},
    {"order": "gpipe", "chunks": 1},
    {"order": "interleaved", "chunks": 2},
    {"order": "interleaved", "chunks": 4},
    {"order": "zb-h1", "chunks": 1},
    {"order": "zb-h2", "chunks": 1},
)

ORDERS = tried(*_ORDERS)
"""Orders of a pipeline that give the weights of `single`, with their chunks."""

ALL_ORDERS = tried(
    *_ORDERS,
    {"order": "pipedream", "chunks": 1, "microbatches": None},
    {"order": "pipedream-2bw", "chunks": 1},
)
"""All orders of a pipeline."""
