"""A run as a graph: the activities that had to end before another could begin.

A receipt waits for its message, which occupies its sender's port and then its receiver's port, one message at a time:
the link model of `costs.transfers`, with the latency and the seconds per byte that the trace shows. A meeting ends when
its last member has come. The other dependencies are the order of each rank's program.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from paceline.analysis.diagnosis.activities import Activities, What
from paceline.analysis.diagnosis.messages import LinkChange, Messages, match_messages
from paceline.analysis.diagnosis.nodes import Graph, Nodes
from paceline.analysis.diagnosis.programs import follow_in_order, follow_messages


def build_graph(activities: Activities, change: LinkChange | None = None) -> Graph:
    """Return the graph of a trace's activities. With a change, its messages use other links."""
    graph, messages = Graph(), match_messages(activities)
    messages = messages if change is None else change.applied(messages)
    nodes = _add_activities(graph, activities, messages, 1.0 if change is None else change.byte_factor)
    _join_programs(graph, nodes, activities, _gradients(activities, messages))
    _join_messages(graph, nodes, activities, messages)
    _join_meetings(graph, nodes, activities)
    return graph


def _add_activities(graph: Graph, activities: Activities, messages: Messages, byte_factor: float) -> Nodes:
    work_s = activities.work_s.copy()
    work_s[messages.send] *= byte_factor
    blocked = ~np.isnan(messages.sending_s)
    work_s[messages.send[blocked]] = messages.sending_s[blocked]
    nodes = Nodes(
        what=activities.what.tolist(),
        start_s=activities.start_s.tolist(),
        end_s=activities.end_s.tolist(),
        work_s=work_s.tolist(),
        peer=activities.peer.tolist(),
    )
    waited = activities.waited.tolist()
    for row, rank in enumerate(activities.rank.tolist()):
        what, row_work_s = nodes.what[row], nodes.work_s[row]
        works = what in (What.COMPUTE, What.WORK, What.SEND)
        begin = end = graph.add(row_work_s if works else 0.0, _resource(what, rank, activities.servers))
        if what == What.COMPUTE:
            graph.computations.append((rank, begin))
        elif what != What.WORK:
            end = graph.add()
            # A message that has already arrived takes only the time to read it.
            graph.after(begin, end, row_work_s if what == What.RECEIPT and not waited[row] else 0.0)
        nodes.begin.append(begin)
        nodes.end.append(end)
    return nodes


def _resource(what: int, rank: int, servers: frozenset[int]) -> int:
    """Return the output port, or the processor of a server.

    A server makes its updates one after another, in any order.
    """
    if what == What.SEND:
        return 3 * rank
    return 3 * rank + 1 if what == What.WORK and rank in servers else -1


def _gradients(activities: Activities, messages: Messages) -> frozenset[int]:
    """Return the receipts of gradients at a single server.

    A gradient is the first message that a worker sends to the server after it began a computation. Buffers and
    farewells follow another message.
    """
    if len(activities.servers) != 1:
        return frozenset()
    begun = np.cumsum(activities.what == What.COMPUTE)
    sender = activities.rank[messages.send]
    before = np.searchsorted(activities.rank, sender) - 1  # the last row of the ranks before
    mine = begun[messages.send] - np.where(before >= 0, begun[before], 0)
    ends = np.column_stack([sender, activities.rank[messages.receipt], mine])
    _, first = np.unique(ends, axis=0, return_index=True)
    return frozenset(messages.receipt[first[mine[first] > 0]].tolist())


def _join_programs(graph: Graph, nodes: Nodes, activities: Activities, gradients: frozenset[int]) -> None:
    bounds = [*np.flatnonzero(np.diff(activities.rank, prepend=-1)).tolist(), len(activities)]
    for first, last in itertools.pairwise(bounds):
        # A server that never updates only receives from the workers and sends to them, one after the other.
        updates = What.WORK in nodes.what[first:last]
        if updates and int(activities.rank[first]) in activities.servers:
            follow_messages(graph, nodes, range(first, last), gradients)
        else:
            follow_in_order(graph, nodes, range(first, last))


def _join_messages(graph: Graph, nodes: Nodes, activities: Activities, found: Messages) -> None:
    columns = (found.send, found.receipt, found.travel_s, found.carry_s, found.late_s, found.sending_s)
    for send, receipt, travel_s, carry_s, late_s, sending_s in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        in_port = 3 * int(activities.rank[receipt]) + 2
        arrival = graph.add(carry_s, in_port)
        graph.arrivals[arrival] = nodes.begin[send], int(activities.rank[send])
        graph.after(nodes.begin[send], arrival, travel_s - carry_s, share=0.0)
        graph.after(arrival, nodes.end[receipt], late_s)
        if not math.isnan(sending_s):  # the send could not end before its receiver began to read the message
            graph.after(nodes.begin[receipt], nodes.end[send], nodes.end_s[send] - nodes.start_s[receipt])


def _join_meetings(graph: Graph, nodes: Nodes, activities: Activities) -> None:
    members = activities.where(What.MEETING)
    order = members[np.argsort(activities.message[members], kind="stable")]
    borders = np.flatnonzero(np.diff(activities.message[order])) + 1
    for rows in np.split(order, borders) if len(order) else ():
        all_here = graph.add()
        last_s = float(activities.start_s[rows].max())
        for row in rows.tolist():
            graph.after(nodes.begin[row], all_here)
            graph.after(all_here, nodes.end[row], max(0.0, nodes.end_s[row] - last_s))
