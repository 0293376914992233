"""Checks of a run's result. Each yields a text for each violation. This module does not need torch."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.strategies import parse
from soak.cases import FEDERATED, Case, Fault

_SAME = {"float64": 1e-10, "float32": 1e-4}
"""Largest distance of weights from `single`, relative to their norm."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The result of a run, in plain values."""

    error: str = ""
    """Type of the error that ended the run. Empty if there was none."""
    text: str = ""
    blamed: frozenset[int] = frozenset()
    """Ranks that the error names as lost or awaited."""
    fired: bool = False
    """Whether the fault hit its rank."""
    outlasted: bool = False
    """Whether the rank continued after its fault before the run ended."""
    parameters: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)
    bytes_sent: list[int] = field(default_factory=list)
    messages_sent: list[int] = field(default_factory=list)
    traced: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Bytes and messages sent by each rank that returned a trace, from its spans."""
    lost: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Oracles:
    """Simulated runs with the expected weights. None if the weights are not predictable."""

    close: Seen | None = None
    """The weights of `single`, up to rounding."""
    equal: Seen | None = None
    """The same strategy in simulation."""
    same_bits: bool = False
    """Whether `same` has exactly the same bits: with one thread per rank it has."""


def check(case: Case, seen: Seen, oracles: Oracles) -> list[str]:
    """Return a text for each violation."""
    if seen.error:
        return [*_check_error(case, seen), *_check_patience(case, seen)]
    found = [
        *_check_patience(case, seen),
        *_check_history(case, seen),
        *_check_lost(case, seen),
        *_check_trace(seen),
    ]
    if not np.isfinite(seen.parameters).all():
        found.append("weights are not finite")
    if not seen.lost:
        found += [*_check_weights(case, seen, oracles), *_check_staleness(case, seen)]
    return found


def may_go_on_without(case: Case, rank: int) -> bool:
    """Return whether the run must continue when a rank dies."""
    strategy: Any = parse(case.spec)
    roles = case.roles
    reporter = roles.index("server") if "server" in roles else 0
    if rank == reporter or roles[rank] not in getattr(strategy, "expendable", ()):
        return False
    if not hasattr(strategy, "policy"):
        return case.workers > 1
    # With several servers, some may have used the gradient of the dead rank and others may not have received it.
    policy = strategy.policy(case.workers)
    return bool(strategy.servers == 1 and case.workers - 1 >= (policy.k if policy.waits else 1))


def _check_error(case: Case, seen: Seen) -> Iterator[str]:
    fault, what = case.fault, f"{seen.error}: {seen.text}"
    if fault is None or not seen.fired or fault.kind == "pause":
        yield f"an error that no fault explains: {what}"
        return
    allowed = ("PeerLost",) if fault.kind == "kill" else ("DeadlineError", "PeerLost")
    if seen.error not in allowed:
        yield f"rank {fault.rank} had a {fault.kind}, but the error is {what}"
    elif not _names(seen, fault):
        yield f"rank {fault.rank} had a {fault.kind}, but the error blames {sorted(seen.blamed)}: {what}"
    elif fault.kind == "kill" and fault.since == "running" and may_go_on_without(case, fault.rank):
        yield f"the run ended, but could have continued without rank {fault.rank}: {what}"


def _check_patience(case: Case, seen: Seen) -> Iterator[str]:
    """Check that a deadline ended the run long before the stopped rank continued, if another rank waits for it."""
    fault = case.fault
    if fault is not None and fault.kind == "stop" and seen.outlasted and len(case.roles) > 1:
        waited = f"{fault.seconds:g} s for the stopped rank {fault.rank}"
        yield f"the run waited {waited}; the deadline is {case.deadline_s:g} s"


def _names(seen: Seen, fault: Fault) -> bool:
    """Return whether the error names the rank in another role than as the waiting rank."""
    rest = re.sub(r"^rank \d+( \(.*?\))? waited", "", seen.text)
    return fault.rank in seen.blamed or re.search(rf"\brank {fault.rank}\b", rest) is not None


def _check_history(case: Case, seen: Seen) -> Iterator[str]:
    if seen.steps != list(range(1, len(seen.steps) + 1)):
        yield f"steps do not count up from 1: {seen.steps}"
    if len(seen.steps) != case.steps:
        yield f"{len(seen.steps)} steps, but {case.steps} were requested"
    # If a pairwise peer dies during an update, the loss of this update is unknown. Earlier losses are known.
    unknown = sum(map(math.isnan, seen.losses))
    if "mode=async" in case.spec and unknown > len(seen.lost):
        yield f"{unknown} steps have no loss, but {len(seen.lost)} ranks were lost: {seen.losses}"
    for name, values in (("seconds", seen.seconds), ("samples", seen.samples)):
        if any(later < earlier for earlier, later in itertools.pairwise(values)):
            yield f"{name} decrease from step to step: {values}"


def _check_lost(case: Case, seen: Seen) -> Iterator[str]:
    allowed = {case.fault.rank} if case.fault and seen.fired and case.fault.kind != "pause" else set()
    if not allowed.issuperset(seen.lost):
        yield f"the run reports lost ranks {seen.lost}, but {set(seen.lost) - allowed} had no fault"


def _check_trace(seen: Seen) -> Iterator[str]:
    for rank, (nbytes, messages) in seen.traced.items():
        if (nbytes, messages) != (seen.bytes_sent[rank], seen.messages_sent[rank]):
            counted = f"{seen.bytes_sent[rank]} bytes in {seen.messages_sent[rank]} messages"
            yield f"rank {rank} sent {counted}, but its trace has {nbytes} bytes in {messages}"


def _check_weights(case: Case, seen: Seen, oracles: Oracles) -> Iterator[str]:
    bound = _SAME[case.dtype]
    if oracles.close is not None and not _distance(seen, oracles.close) <= bound:
        yield f"weights are {_distance(seen, oracles.close):.3g} from single, more than {bound:g}"
    same = oracles.equal
    if same is None:
        return
    if oracles.same_bits and not np.array_equal(seen.parameters, same.parameters):
        yield f"weights differ from the simulation by {_distance(seen, same):.3g}, but must have the same bits"
    if not _distance(seen, same) <= bound:
        yield f"weights are {_distance(seen, same):.3g} from the simulation, more than {bound:g}"
    # A round in which no client answered has no loss. It is stored as NaN.
    if oracles.same_bits and not np.array_equal(seen.losses, same.losses, equal_nan=True):
        yield f"losses differ from the simulation: {seen.losses} and {same.losses}"
    if seen.samples != same.samples:
        yield f"samples differ from the simulation: {seen.samples} and {same.samples}"
    if not case.uses_windows and "native" not in case.spec:
        yield from _check_traffic(seen, same)


def _check_traffic(seen: Seen, same: Seen) -> Iterator[str]:
    for name in ("bytes_sent", "messages_sent"):
        here, there = getattr(seen, name), getattr(same, name)
        if here != there:
            yield f"{name} is {here}, but {there} in simulation"


def _distance(seen: Seen, other: Seen) -> float:
    """Return the distance of the weights, relative to the norm of the other weights."""
    if seen.parameters.shape != other.parameters.shape:
        return float("inf")
    difference = seen.parameters.astype(np.float64) - other.parameters.astype(np.float64)
    return float(np.linalg.norm(difference) / max(1e-300, float(np.linalg.norm(other.parameters))))


def _check_staleness(case: Case, seen: Seen) -> Iterator[str]:
    strategy: Any = parse(case.spec)
    policy = strategy.policy(case.workers) if hasattr(strategy, "policy") else None
    counted = sum(seen.staleness.values())
    if policy is not None and counted != case.steps * policy.k:
        yield f"staleness counts {counted} gradients, but {case.steps} updates by {policy.k} were made"
    if any(value < 0 for value in seen.staleness):
        yield f"staleness below 0: {seen.staleness}"
    bound = _stalest(case, policy)
    if bound is not None and max(seen.staleness, default=0) > bound:
        yield f"staleness up to {max(seen.staleness)}, but {case.spec} allows {bound}"


def _stalest(case: Case, policy: Any) -> int | None:
    """Return the bound on staleness; None if there is none."""
    if case.word in FEDERATED or case.is_synchronous:
        return 0
    if policy is None:
        return None
    if policy.cancels:
        return 0
    if policy.slack is None:
        return None
    # While a worker computes its gradient n, each other worker advances at most from n - slack to n + slack + 1.
    return int((case.workers - 1) * (2 * policy.slack + 1))
