"""Checks before a bench that it fits into the memory of this machine."""

from __future__ import annotations

from paceline.bench.spec import Spec
from paceline.costs.units import format_bytes
from paceline.errors import ConfigurationError
from paceline.schedules.collectives import COLLECTIVES
from paceline.schedules.collectives.collective import scratch_length
from paceline.schedules.collectives.steps import Send

_PROCESS_BYTES = (
    16 * 2**20
)  # memory that a worker does not share with the fork server: 8 MiB measured, plus a margin
_RING_BYTES = 2**22  # as in links/memory/rings.py, which imports torch


def check_memory(spec: Spec, available: int | None) -> None:
    """Raise if the bench needs more memory than is available. None if that is unknown."""
    needed = needed_bytes(spec, spec.lengths)
    if available is None or needed <= available:
        return
    fitting = [
        n for n in spec.lengths if needed_bytes(spec, [m for m in spec.lengths if m <= n]) <= available
    ]
    lower = f"-e {_option(fitting[-1] * spec.itemsize)} fits" if fitting else "no size fits"
    largest = format_bytes(spec.lengths[-1] * spec.itemsize)
    raise ConfigurationError(
        "memory",
        f"must hold {spec.workers} workers with tensors of {largest}, for which {', '.join(spec.cases)} "
        f"need {format_bytes(needed)}",
        f"{format_bytes(available)} available",
        f"use fewer --workers, fewer --algorithms or a lower -e: {lower}",
    )


def _option(nbytes: int) -> str:
    """Format a size as a command-line option."""
    units = {"G": 2**30, "M": 2**20, "K": 2**10}
    return next(
        (f"{nbytes // unit}{name}" for name, unit in units.items() if nbytes % unit == 0), str(nbytes)
    )


def needed_bytes(spec: Spec, lengths: list[int] | tuple[int, ...]) -> int:
    """Return the bytes of all workers at the largest size, plus the windows of all sizes, which live until the end."""
    largest = max(lengths)
    windows = sum((spec.workers + 1) * n * spec.itemsize for n in lengths) if _uses_windows(spec) else 0
    check = largest  # a mask with one byte per element
    tensors = spec.workers * ((1 + _copies(spec)) * largest * spec.itemsize + check)
    return tensors + windows + _rings(spec) + spec.workers * _PROCESS_BYTES


def _uses_windows(spec: Spec) -> bool:
    return spec.pattern == "all-reduce" and not {"shared", "auto"}.isdisjoint(spec.algorithms)


def _copies(spec: Spec) -> int:
    """Return the largest number of scratch tensors of an algorithm on a rank. Gloo has one, or an output."""
    ranks = range(spec.workers)
    plans = [spec.kind.collective(name, spec.workers) for name in _schedules(spec)]
    most = max((scratch_length(plan, rank, 1) for plan in plans for rank in ranks), default=0)
    return max(most, 1 if spec.baseline or "native" in spec.algorithms else 0)


def _schedules(spec: Spec) -> list[str]:
    return [name for name in spec.algorithms if name in COLLECTIVES[spec.pattern]]


def _rings(spec: Spec) -> int:
    """Return the bytes of the ring buffers. There is one for each ordered pair of ranks that exchanges messages."""
    pairs = {
        (rank, step.to)
        for name in _schedules(spec)
        for rank in range(spec.workers)
        for steps in spec.kind.collective(name, spec.workers).schedule(rank).rounds
        for step in steps
        if isinstance(step, Send)
    }
    return len(pairs) * _RING_BYTES
