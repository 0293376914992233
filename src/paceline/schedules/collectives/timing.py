"""The time at which each rank of a group ends a schedule.

The link model is in `costs.transfers`. The simulated cluster uses the same code. A rank has one output port and one
input port.

A Send is done when the output port has finished it. A Recv or Reduce is done when its message is delivered.
Combining and copying take no time. The steps of a round are issued together, in their order. A rank's next round
starts when all of them are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigurationError
from paceline.schedules.collectives.exact import messages_of_matches, messages_of_plan, run_exact
from paceline.schedules.collectives.matching import match
from paceline.schedules.collectives.network import Floats, LinkCost, NetworkCosts, chunk_bytes, link_cost
from paceline.schedules.collectives.plan import GroupPlan
from paceline.schedules.collectives.steps import Schedule
from paceline.schedules.collectives.wavefront import OutOfOrder, run_wavefront

_WIDE = 8
"""Minimum number of messages per round to time them as arrays, which is then faster. Affects only speed.
Measured."""


@dataclass(frozen=True, eq=False, slots=True)
class Timing:
    """The time at which each rank has ended its part, and the times at which its ports are free again."""

    finish_s: Floats
    out_free_s: Floats
    in_free_s: Floats


def time_schedule(
    group: GroupPlan | Sequence[Schedule],
    *,
    length: int,
    itemsize: int,
    arrivals_s: npt.ArrayLike,
    latency_s: LinkCost,
    seconds_per_byte: LinkCost,
    out_free_s: npt.ArrayLike | None = None,
    in_free_s: npt.ArrayLike | None = None,
    bounds: Sequence[int] | None = None,
) -> Timing:
    """Time a collective on `length` elements. Rank r enters it at `arrivals_s[r]`.

    `out_free_s` and `in_free_s` are the times at which ports become free, if they are busy with earlier messages. A
    plan is timed with arrays if possible, per-rank schedules message by message. For a large group, or repeated timing,
    use a plan. `bounds` are for chunks that are not nearly equal.
    """
    size = group.size if isinstance(group, GroupPlan) else len(group)
    first = group if isinstance(group, GroupPlan) else group[0]
    network = NetworkCosts(
        chunk_bytes(length, itemsize, first.chunks, first.scratch, bounds),
        link_cost(latency_s, "latency_s", size),
        link_cost(seconds_per_byte, "seconds_per_byte", size),
    )
    now = _per_rank(arrivals_s, "arrivals_s", size)
    idle = now.min()  # no message is in flight before the first rank arrives
    out_free = _per_rank(idle if out_free_s is None else out_free_s, "out_free_s", size)
    in_free = _per_rank(idle if in_free_s is None else in_free_s, "in_free_s", size)
    return _run(group, network, now, out_free, in_free)


def _run(
    group: GroupPlan | Sequence[Schedule],
    network: NetworkCosts,
    now: Floats,
    out_free: Floats,
    in_free: Floats,
) -> Timing:
    if not isinstance(group, GroupPlan):
        messages = messages_of_matches(match(group))
        return Timing(*run_exact(messages, network, now, out_free, in_free))
    if group.messages >= _WIDE * group.depth:
        try:
            return Timing(*run_wavefront(group, network, now, out_free, in_free))
        except OutOfOrder:
            pass
    return Timing(*run_exact(messages_of_plan(group), network, now, out_free, in_free))


def _per_rank(values: npt.ArrayLike, name: str, size: int) -> Floats:
    array = np.asarray(values, np.float64)
    if array.shape not in ((), (size,)):
        raise ConfigurationError(name, f"must have one number for each of {size} ranks", array.shape)
    return np.broadcast_to(array, (size,)).copy()
