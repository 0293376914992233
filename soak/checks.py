"""What must be true of a run, whatever its luck. Each check tells what is violated, in words; none needs torch."""

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

__all__ = ["Oracles", "Seen", "check", "may_go_on_without"]

_SAME = {"float64": 1e-10, "float32": 1e-4}
"""How far weights may be from those of `single`, relative to their norm."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What came of a run, in plain values."""

    error: str = ""
    """The type of the error that ended it."""
    text: str = ""
    blamed: frozenset[int] = frozenset()
    """The ranks that the error names as the ones that are gone or awaited."""
    fired: bool = False
    """Whether the fault of the case hit its rank."""
    outlasted: bool = False
    """Whether the rank went on, after its fault, before the run had ended."""
    parameters: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)
    bytes_sent: list[int] = field(default_factory=list)
    messages_sent: list[int] = field(default_factory=list)
    traced: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each rank that brought a trace back: the bytes and the messages that it sent, by its spans."""
    lost: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Oracles:
    """Runs in simulation that say what the weights have to be. None: nothing says it."""

    close: Seen | None = None
    """The weights of `single`, but for the last places."""
    equal: Seen | None = None
    """The same strategy in simulation."""
    same_bits: bool = False
    """Whether the second has the very bits: it does with one thread a rank."""


def check(case: Case, seen: Seen, oracles: Oracles) -> list[str]:
    """What is violated."""
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
    """Whether the run has to go on when a rank dies."""
    strategy: Any = parse(case.spec)
    roles = case.roles
    reporter = roles.index("server") if "server" in roles else 0
    if rank == reporter or roles[rank] not in getattr(strategy, "expendable", ()):
        return False
    if not hasattr(strategy, "policy"):
        return case.workers > 1
    # With several servers some may have used the dead one's gradient and others lack it.
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
        yield f"the run ended, but could have gone on without rank {fault.rank}: {what}"


def _check_patience(case: Case, seen: Seen) -> Iterator[str]:
    """Where somebody can miss a rank, a deadline ends the run long before the rank goes on."""
    fault = case.fault
    if fault is not None and fault.kind == "stop" and seen.outlasted and len(case.roles) > 1:
        waited = f"{fault.seconds:g} s for rank {fault.rank}, which was stopped"
        yield f"the run waited {waited}; the deadline is {case.deadline_s:g} s"


def _names(seen: Seen, fault: Fault) -> bool:
    """Whether the error names the rank as more than the one that waited."""
    rest = re.sub(r"^rank \d+( \(.*?\))? waited", "", seen.text)
    return fault.rank in seen.blamed or re.search(rf"\brank {fault.rank}\b", rest) is not None


def _check_history(case: Case, seen: Seen) -> Iterator[str]:
    if seen.steps != list(range(1, len(seen.steps) + 1)):
        yield f"steps do not count up from 1: {seen.steps}"
    if len(seen.steps) != case.steps:
        yield f"{len(seen.steps)} steps, but {case.steps} were asked for"
    # A pairwise peer may die while it makes an update, and nobody knows its loss. Those before are known.
    unknown = sum(map(math.isnan, seen.losses))
    if "mode=async" in case.spec and unknown > len(seen.lost):
        yield f"{unknown} steps have no loss, but {len(seen.lost)} ranks were lost: {seen.losses}"
    for name, values in (("seconds", seen.seconds), ("samples", seen.samples)):
        if any(later < earlier for earlier, later in itertools.pairwise(values)):
            yield f"{name} decrease from step to step: {values}"


def _check_lost(case: Case, seen: Seen) -> Iterator[str]:
    allowed = {case.fault.rank} if case.fault and seen.fired and case.fault.kind != "pause" else set()
    if not allowed.issuperset(seen.lost):
        yield f"the run says that it lost {seen.lost}, but nothing was done to {set(seen.lost) - allowed}"


def _check_trace(seen: Seen) -> Iterator[str]:
    for rank, (nbytes, messages) in seen.traced.items():
        if (nbytes, messages) != (seen.bytes_sent[rank], seen.messages_sent[rank]):
            counted = f"{seen.bytes_sent[rank]} bytes in {seen.messages_sent[rank]} messages"
            yield f"rank {rank} sent {counted}, but its trace has {nbytes} bytes in {messages}"


def _check_weights(case: Case, seen: Seen, oracles: Oracles) -> Iterator[str]:
    bound = _SAME[case.dtype]
    if oracles.close is not None and not _distance(seen, oracles.close) <= bound:
        yield f"weights are {_distance(seen, oracles.close):.3g} from those of single, more than {bound:g}"
    same = oracles.equal
    if same is None:
        return
    if oracles.same_bits and not np.array_equal(seen.parameters, same.parameters):
        yield f"weights are not the bits of the simulation: {_distance(seen, same):.3g} from them"
    if not _distance(seen, same) <= bound:
        yield f"weights are {_distance(seen, same):.3g} from those of the simulation, more than {bound:g}"
    # A round in which no client answered has no loss, which is written as NaN.
    if oracles.same_bits and not np.array_equal(seen.losses, same.losses, equal_nan=True):
        yield f"losses are not those of the simulation: {seen.losses} and {same.losses}"
    if seen.samples != same.samples:
        yield f"samples are not those of the simulation: {seen.samples} and {same.samples}"
    if not case.uses_windows and "native" not in case.spec:
        yield from _check_traffic(seen, same)


def _check_traffic(seen: Seen, same: Seen) -> Iterator[str]:
    for name in ("bytes_sent", "messages_sent"):
        here, there = getattr(seen, name), getattr(same, name)
        if here != there:
            yield f"{name} is {here}, but {there} in simulation"


def _distance(seen: Seen, other: Seen) -> float:
    """Of the weights, relative to the norm of the other's."""
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
    """The bound on staleness. None: there is none."""
    if case.word in FEDERATED or case.is_synchronous:
        return 0
    if policy is None:
        return None
    if policy.cancels:
        return 0
    if policy.slack is None:
        return None
    # While a worker is at its gradient n, each other goes at most from n - slack to n + slack + 1.
    return int((case.workers - 1) * (2 * policy.slack + 1))
