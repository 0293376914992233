"""What a worker's activities wait for: all that the worker had ended before.

An activity begins after the moment that the rank took to get to it. What begins during a computation follows what ended
just then (the next step of a collective), or else the computation itself, which had come so far (a bucket was ready).
"""

from __future__ import annotations

from paceline.diagnosis.activities import What
from paceline.diagnosis.nodes import Ended, Graph, Nodes

__all__ = ["follow_in_order"]

_JUST_THEN = 0.02
"""What begins within this share of a computation after another activity's end follows from it."""


def follow_in_order(graph: Graph, nodes: Nodes, rows: range) -> None:
    """Join the activities of a rank that computes gradients."""
    ended = Ended(graph, nodes, rows)
    computation = -1
    for row in rows:
        place = ended.before(row)
        gap_s = ended.gap_s(row, place)
        if computation >= 0 and nodes.start_s[row] < nodes.end_s[computation]:
            _follow_within(graph, nodes, row, computation, ended.row(place), gap_s)
        else:
            graph.after(ended.all_until(place), nodes.begin[row], gap_s)
        if nodes.what[row] == What.COMPUTE:
            computation = row


def _follow_within(graph: Graph, nodes: Nodes, row: int, computation: int, last: int, gap_s: float) -> None:
    begun_s, work_s = nodes.start_s[computation], nodes.work_s[computation]
    if last >= 0 and nodes.end_s[last] > begun_s and gap_s <= _JUST_THEN * work_s:
        graph.after(nodes.end[last], nodes.begin[row], gap_s)
    else:
        share = (nodes.start_s[row] - begun_s) / work_s
        graph.after(nodes.begin[computation], nodes.begin[row], share=share)
