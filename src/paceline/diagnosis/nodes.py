"""What a graph of a run is made of, and the order in which a rank's activities ended."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

__all__ = ["ROOT", "Ended", "Graph", "Nodes", "Rounds"]

ROOT = 0
"""The node of the run's beginning."""


@dataclass(slots=True)
class Rounds:
    """The updates of a server that takes gradients as they come: so many for each update, whoever's they are."""

    until: list[int] = field(default_factory=list)
    """For each update, how many gradients must have come since the run began."""
    gates: list[int] = field(default_factory=list)
    """The node that opens then."""
    updates: list[int] = field(default_factory=list)
    """The node of the update itself."""
    replies: dict[int, tuple[int, float] | None] = field(default_factory=dict)
    """The node in which each gradient is there; the send that answers it after its update, and how long after."""


@dataclass(slots=True)
class Graph:
    """Nodes and edges. A node begins when all of its edges allow it and its resource is free."""

    work_s: list[float] = field(default_factory=lambda: [0.0])
    """How long each node takes."""
    resource: list[int] = field(default_factory=lambda: [-1])
    """What each node has to itself meanwhile: a port, a server's processor. -1: nothing."""
    edges: list[list[tuple[int, float, float]]] = field(default_factory=lambda: [[]])
    """From each node: to which, and when that one may begin: a share of this one's work and some seconds later."""
    computations: list[tuple[int, int]] = field(default_factory=list)
    """Rank and node of each, in the order of each rank."""
    rounds: list[Rounds] = field(default_factory=list)

    def add(self, work_s: float = 0.0, resource: int = -1) -> int:
        self.work_s.append(work_s)
        self.resource.append(resource)
        self.edges.append([])
        return len(self.work_s) - 1

    def after(self, before: int, then: int, gap_s: float = 0.0, share: float = 1.0) -> None:
        """`then` may begin `gap_s` after `before` has done a share of its work: all of it, mostly."""
        self.edges[before].append((then, share, gap_s))


@dataclass(slots=True, kw_only=True)
class Nodes:
    """The activities once more, as plain lists, and the nodes in which each begins and ends."""

    what: list[int]
    start_s: list[float]
    end_s: list[float]
    work_s: list[float]
    peer: list[int]
    nbytes: list[int]
    received: frozenset[int]
    """The receipts whose send is known."""
    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)


class Ended:
    """The activities of a rank in the order in which they ended."""

    def __init__(self, graph: Graph, nodes: Nodes, rows: range) -> None:
        self._graph = graph
        self._nodes = nodes
        self.order = sorted((nodes.end_s[row], row) for row in rows)
        self._all: list[int] = []

    def before(self, row: int) -> int:
        """How many had ended when this one began."""
        return bisect_left(self.order, (self._nodes.start_s[row], row))

    def gap_s(self, row: int, place: int) -> float:
        """From the end of the last of the first `place` to the begin of this one."""
        return self._nodes.start_s[row] - (self.order[place - 1][0] if place else 0.0)

    def row(self, place: int) -> int:
        """The last of the first `place`; -1: there is none."""
        return self.order[place - 1][1] if place else -1

    def all_until(self, place: int) -> int:
        """The node that is over when the first `place` are."""
        while len(self._all) < place:
            both = self._graph.add()
            self._graph.after(self._all[-1] if self._all else ROOT, both)
            self._graph.after(self._nodes.end[self.order[len(self._all)][1]], both)
            self._all.append(both)
        return self._all[place - 1] if place else ROOT
