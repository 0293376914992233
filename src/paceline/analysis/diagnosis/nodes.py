"""The graph of a run, and the order in which a rank's activities ended."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from paceline.analysis.diagnosis.activities import What

ROOT = 0
"""The node of the start of the run."""


@dataclass(slots=True)
class Rounds:
    """Updates of a server that accepts gradients in any order: a number of gradients per update, from any worker."""

    until: list[int] = field(default_factory=list)
    """For each update, the number of gradients that must have arrived since the start of the run."""
    gates: list[int] = field(default_factory=list)
    """For each update, the node that opens then."""
    updates: list[int] = field(default_factory=list)
    """The node of each update itself."""
    replies: dict[int, tuple[int, float] | None] = field(default_factory=dict)
    """By the node at which a gradient arrives: the send that follows its update, and the delay of that send."""


@dataclass(slots=True)
class Graph:
    """Nodes and edges. A node starts when all of its edges allow it and its resource is free."""

    work_s: list[float] = field(default_factory=lambda: [0.0])
    """Duration of each node."""
    resource: list[int] = field(default_factory=lambda: [-1])
    """Resource that each node occupies: a port, or a server's processor; -1 for none."""
    edges: list[list[tuple[int, float, float]]] = field(default_factory=lambda: [[]])
    """Edges of each node: the next node, and when it may start: after a share of this node's work, plus seconds."""
    arrivals: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each node that is the arrival of a message: the node of its send, and the sender's rank."""
    computations: list[tuple[int, int]] = field(default_factory=list)
    """Rank and node of each computation, in the order of each rank."""
    rounds: list[Rounds] = field(default_factory=list)

    def add(self, work_s: float = 0.0, resource: int = -1) -> int:
        self.work_s.append(work_s)
        self.resource.append(resource)
        self.edges.append([])
        return len(self.work_s) - 1

    def after(self, before: int, then: int, gap_s: float = 0.0, share: float = 1.0) -> None:
        """Let node `then` start `gap_s` seconds after node `before` has done a share of its work, usually all."""
        self.edges[before].append((then, share, gap_s))


@dataclass(slots=True, kw_only=True)
class Nodes:
    """The activities as plain lists, and the nodes in which each starts and ends."""

    what: list[int]
    start_s: list[float]
    end_s: list[float]
    work_s: list[float]
    peer: list[int]
    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)

    def handled_s(self, row: int) -> float:
        """Return the time at which a server handles an activity: the end of a receipt, the start of any other
        activity."""
        return self.end_s[row] if self.what[row] == What.RECEIPT else self.start_s[row]


class Ended:
    """The activities of a rank in the order in which they ended."""

    def __init__(self, graph: Graph, nodes: Nodes, rows: range) -> None:
        self._graph = graph
        self._nodes = nodes
        self.order = sorted((nodes.end_s[row], row) for row in rows)
        self._all: list[int] = []

    def before(self, row: int) -> int:
        """Return the number of activities that had ended when this one started."""
        return bisect_left(self.order, (self._nodes.start_s[row], row))

    def gap_s(self, row: int, place: int) -> float:
        """Return the time from the end of the `place`-th activity to the start of this one."""
        return self._nodes.start_s[row] - (self.order[place - 1][0] if place else 0.0)

    def row(self, place: int) -> int:
        """Return the row of the `place`-th activity to end; -1 if `place` is 0."""
        return self.order[place - 1][1] if place else -1

    def all_until(self, place: int) -> int:
        """Return the node that ends when the first `place` have ended."""
        while len(self._all) < place:
            both = self._graph.add()
            self._graph.after(self._all[-1] if self._all else ROOT, both)
            self._graph.after(self._nodes.end[self.order[len(self._all)][1]], both)
            self._all.append(both)
        return self._all[place - 1] if place else ROOT
