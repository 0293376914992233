"""All-reduce in two levels: inside each host over fast links, and between hosts over slow links.

G hosts of L ranks each: a ring reduce-scatter inside every host leaves shard i on local index i. The ranks of local
index i all-reduce their shard around a ring over the hosts. A ring all-gather inside every host completes it. If
hosts have unequal numbers of ranks, a tree inside each host reduces to its first rank instead. These leaders
all-reduce around a ring, and a tree broadcasts the result inside each host.

Cost, n bytes: 2 n b_in (L - 1)/L + 2 (n/L) b_out (G - 1)/G + 2 (L - 1) a_in + 2 (G - 1) a_out.
Source: Mikami et al., "Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash", 2018 (2D-torus
all-reduce); Goyal et al. 2017, section 4, for the leaders.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.errors import ConfigurationError
from paceline.schedules.collectives import all_gather, broadcast, reduce, reduce_scatter, ring
from paceline.schedules.collectives.group import check_group, embed
from paceline.schedules.collectives.plan import GroupPlan, in_sequence, plan_of_schedules, side_by_side
from paceline.schedules.collectives.steps import Schedule


def schedule(rank: int, size: int, hosts: Sequence[int] | None = None) -> Schedule:
    """Return one rank's schedule. `hosts[r]` is the number of rank r's host; None if all ranks share one."""
    check_group(rank, size)
    return _schedule(rank, size, _members(size, hosts))


def plan(size: int, hosts: Sequence[int] | None = None) -> GroupPlan:
    """Return the same schedule for the whole group, as arrays."""
    check_group(0, size)
    members = _members(size, hosts)
    if not _is_grid(members):
        return plan_of_schedules([_schedule(rank, size, members) for rank in range(size)])
    grid = np.array(members, np.int64)
    groups, locals_ = grid.shape
    shards = np.arange(locals_, dtype=np.int64) * groups
    inside = np.zeros(groups, np.int64)
    return in_sequence(
        [
            side_by_side(reduce_scatter.plan(locals_), grid, width=groups, offsets=inside),
            side_by_side(ring.plan(groups), grid.T, width=1, offsets=shards),
            side_by_side(all_gather.plan(locals_), grid, width=groups, offsets=inside),
        ]
    )


def _members(size: int, hosts: Sequence[int] | None) -> list[list[int]]:
    """Return the ranks of each host, with hosts in order of their first rank."""
    if hosts is None:
        return [list(range(size))]
    if len(hosts) != size:
        raise ConfigurationError("hosts", f"must name the host of each of {size} ranks", tuple(hosts))
    members: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    return list(members.values())


def _is_grid(members: list[list[int]]) -> bool:
    return len({len(inside) for inside in members}) == 1


def _schedule(rank: int, size: int, members: list[list[int]]) -> Schedule:
    host = next(i for i, inside in enumerate(members) if rank in inside)
    local = members[host].index(rank)
    return _grid(host, local, members) if _is_grid(members) else _leaders(host, local, members)


def _grid(host: int, local: int, members: list[list[int]]) -> Schedule:
    inside, across = members[host], [ranks[local] for ranks in members]
    groups, locals_ = len(across), len(inside)
    return Schedule(
        groups * locals_,
        embed(reduce_scatter.schedule(local, locals_).rounds, inside, width=groups)
        + embed(ring.schedule(host, groups).rounds, across, offset=local * groups)
        + embed(all_gather.schedule(local, locals_).rounds, inside, width=groups),
    )


def _leaders(host: int, local: int, members: list[list[int]]) -> Schedule:
    inside, leaders = members[host], [ranks[0] for ranks in members]
    groups = len(leaders)
    between = embed(ring.schedule(host, groups).rounds, leaders) if local == 0 else ()
    return Schedule(
        groups,
        embed(reduce.tree(local, len(inside)).rounds, inside, width=groups)
        + between
        + embed(broadcast.tree(local, len(inside)).rounds, inside, width=groups),
    )
