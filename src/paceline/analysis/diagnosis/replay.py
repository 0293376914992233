"""Replay of a run by its graph, with some ranks computing at a different speed and nothing else changed.

Messages follow the link model of `costs.transfers`.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Mapping

from paceline.analysis.diagnosis.nodes import Graph, Rounds
from paceline.costs.transfers import Resource, arrival_order

_TICKS_PER_S = 1e10
"""Events within a tick count as simultaneous and are ordered by rank, so that the order does not depend on
rounding."""


def computations_per_s(graph: Graph, pace: Mapping[int, float]) -> float:
    """Return the number of gradients that all ranks together compute per second in steady state.

    `pace` is the factor on the compute time of a rank. Unsynchronized ranks end their part of the trace at different
    times. Only the time until the first of them ends is representative.
    """
    work_s = list(graph.work_s)
    for rank, node in graph.computations:
        work_s[node] *= pace.get(rank, 1.0)
    begins_s = replay(graph, work_s)
    by_rank: dict[int, list[float]] = {}
    for rank, node in graph.computations:
        if begins_s[node] < math.inf:
            by_rank.setdefault(rank, []).append(begins_s[node])
    several = [sorted(begins) for begins in by_rank.values() if len(begins) > 1]
    until_s = min((begins[-1] for begins in several), default=math.nan)
    return sum(
        _position(begins, until_s) / (until_s - begins[0]) for begins in several if until_s > begins[0]
    )


def _position(begins_s: list[float], at_s: float) -> float:
    """Return the number of computations started after the first, including a fraction of the one in progress."""
    place = bisect_left(begins_s, at_s)
    if begins_s[place] == at_s:
        return place
    before_s, after_s = begins_s[place - 1], begins_s[place]
    return place - 1 + (at_s - before_s) / (after_s - before_s)


def replay(graph: Graph, work_s: list[float]) -> list[float]:
    """Return the start of each node; infinite if it never starts.

    A resource serves nodes in the order in which they may start, an input port in `arrival_order`.
    """
    return _Replay(graph, work_s).run()


class _Replay:
    def __init__(self, graph: Graph, work_s: list[float]) -> None:
        self._graph = graph
        self._work_s = work_s
        self._allowed_s = [0.0] * len(work_s)
        self._awaited = [0] * len(work_s)
        for edges in graph.edges:
            for then, _, _ in edges:
                self._awaited[then] += 1
        self._begins_s = [math.inf] * len(work_s)
        self._resources = {number: Resource() for number in graph.resource}
        self._queue: list[tuple[tuple[float, float, int], int]] = []
        self._servers: dict[int, _Server] = {}
        for rounds in graph.rounds:
            server = _Server(rounds)
            for node in rounds.replies:
                self._servers[node] = server
            for node in (*rounds.gates, *(reply[0] for reply in rounds.replies.values() if reply)):
                self._awaited[node] += 1
        self._answers: dict[int, list[tuple[int, float]]] = {}

    def run(self) -> list[float]:
        begins_s = self._begins_s
        self._queue = [(self._turn(node), node) for node, count in enumerate(self._awaited) if count == 0]
        while self._queue:
            _, node = heapq.heappop(self._queue)
            now_s, resource, work_s = self._allowed_s[node], self._graph.resource[node], self._work_s[node]
            if resource >= 0:
                now_s = self._resources[resource].occupy(now_s, work_s)
            begins_s[node] = now_s
            for then, share, gap_s in self._graph.edges[node]:
                self._allow(then, now_s + share * work_s + gap_s)
            for then, gap_s in self._answers.pop(node, ()):
                self._allow(then, now_s + work_s + gap_s)
            if node in self._servers:
                self._take_gradient(self._servers[node], node, now_s)
        return begins_s

    def _allow(self, node: int, at_s: float) -> None:
        if at_s > self._allowed_s[node]:
            self._allowed_s[node] = at_s
        self._awaited[node] -= 1
        if not self._awaited[node]:
            heapq.heappush(self._queue, (self._turn(node), node))

    def _turn(self, node: int) -> tuple[float, float, int]:
        """Return the key by which a node gets its turn. Arrivals come last among simultaneous nodes."""
        at = round(self._allowed_s[node] * _TICKS_PER_S)
        if node not in self._graph.arrivals:
            return at, -1, -1
        send, source = self._graph.arrivals[node]
        return arrival_order(at, round(self._begins_s[send] * _TICKS_PER_S), source)

    def _take_gradient(self, server: _Server, node: int, now_s: float) -> None:
        rounds, reply = server.rounds, server.rounds.replies[node]
        place = bisect_left(rounds.until, server.come + 1)
        server.come += 1
        if reply is not None:
            if place < len(rounds.updates):
                self._answers.setdefault(rounds.updates[place], []).append(reply)
            else:  # after the last update no rank waits
                self._allow(reply[0], now_s)
        if place < len(rounds.gates) and server.come == rounds.until[place]:
            self._allow(rounds.gates[place], now_s)


class _Server:
    """Number of gradients that have arrived at a server."""

    __slots__ = ("come", "rounds")

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.come = 0
