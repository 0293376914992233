"""Common rounds for a whole group: each message gets one round that its sender and its receiver share.

The rounds of two ranks that exchange a message are connected. Rounds that are connected, directly or through
others, form a group called a knot. Each knot gets the earliest round that follows all earlier rounds of its ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from paceline.schedules.collectives.matching import Match, ScheduleError

_Node = tuple[int, int]
"""A rank and the number of one of its rounds."""


def waves(matches: Sequence[Match]) -> list[list[Match]]:
    """Group the messages into common rounds. Messages of one round keep their order.

    Raise `ScheduleError` for schedules without common rounds, in which a knot would have to precede itself.
    """
    knot = _knots(matches)
    order = _order(knot)
    for message in matches:
        if knot[_sender(message)] not in order:
            problem = "its rounds and its peers' rounds have no common order"
            raise ScheduleError(message.sender, None, problem, "deadlock")
    grouped: list[list[Match]] = [[] for _ in range(max(order.values(), default=-1) + 1)]
    for message in matches:
        grouped[order[knot[_sender(message)]]].append(message)
    return grouped


def _sender(message: Match) -> _Node:
    return message.sender.rank, message.sender.round


def _knots(matches: Sequence[Match]) -> dict[_Node, _Node]:
    """Return the knot of each node. A knot is identified by one of its nodes (disjoint sets, with path halving)."""
    parent: dict[_Node, _Node] = {}

    def find(node: _Node) -> _Node:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for message in matches:
        parent[find(_sender(message))] = find((message.receiver.rank, message.receiver.round))
    return {node: find(node) for node in list(parent)}


def _order(knot: dict[_Node, _Node]) -> dict[_Node, int]:
    """Return the round of each reachable knot. A knot is reached when all its nodes are next on their ranks."""
    members: dict[_Node, list[_Node]] = defaultdict(list)
    line: dict[int, list[_Node]] = defaultdict(list)
    for node in sorted(knot, reverse=True):
        members[knot[node]].append(node)
        line[node[0]].append(node)
    missing = {name: len(nodes) for name, nodes in members.items()}
    order: dict[_Node, int] = {}
    heads = [rest.pop() for rest in line.values()]
    wave = 0
    while heads:
        ready = []
        for node in heads:
            missing[knot[node]] -= 1
            if missing[knot[node]] == 0:
                ready.append(knot[node])
        order.update(dict.fromkeys(ready, wave))
        heads = [line[rank].pop() for name in ready for rank, _ in members[name] if line[rank]]
        wave += 1
    return order
