"""When each rank of a group ends a schedule, for a whole group at once.

The model, which the simulated cluster follows message by message. A rank has one out port and one in port,
which work at the same time. A message of n bytes, over a link of latency a and b seconds a byte:

- starts at s, when its send is called and the out port is free, and holds the out port until s + n b;
- reaches its target's in port at s + a; an in port takes messages in the order in which they reach it (of one
  instant: in order of start, then of the send call, then of the sender's rank) and holds each for n b; then
  it is delivered.

A Send is done when the out port has finished it; a Recv or Reduce when its message is delivered. Combining
and copying take no time. The steps of a round are issued together, in their order; a rank's next round begins
when all of them are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigurationError
from paceline.schedules.exact import messages_of_matches, messages_of_plan, run_exact
from paceline.schedules.matching import match
from paceline.schedules.network import Floats, LinkCost, NetworkCosts, chunk_bytes, link_cost
from paceline.schedules.plan import GroupPlan
from paceline.schedules.steps import Schedule
from paceline.schedules.wavefront import OutOfOrder, run_wavefront

__all__ = ["Timing", "time_schedule"]

_WIDE = 8
"""Messages a round from which arrays beat going message by message. Measured; it only costs time."""


@dataclass(frozen=True, eq=False, slots=True)
class Timing:
    """When each rank has ended its part, and when its ports are free again."""

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
    """Time a collective on `length` elements, which rank r enters at `arrivals_s[r]`.

    Ports that are still busy with earlier messages are given by the times at which they will be free. A plan
    is timed with arrays where it can be, per-rank schedules message by message: to time a large group, or one
    group often, plan it. `bounds` are those of chunks that are not nearly equal.
    """
    size = group.size if isinstance(group, GroupPlan) else len(group)
    first = group if isinstance(group, GroupPlan) else group[0]
    network = NetworkCosts(
        chunk_bytes(length, itemsize, first.chunks, first.scratch, bounds),
        link_cost(latency_s, "latency_s", size),
        link_cost(seconds_per_byte, "seconds_per_byte", size),
    )
    now = _per_rank(arrivals_s, "arrivals_s", size)
    idle = now.min()  # no message is under way before the first rank arrives
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
