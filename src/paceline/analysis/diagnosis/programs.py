"""Dependencies among the activities of one rank: the order of its program.

A worker's activity waits for all earlier activities of that worker. A server handles messages in order of arrival: a
receipt waits for its message only, an update for a number of gradients from any workers, and a send for the update or
the gradient that it answers. With several servers the first decides which gradients make up an update, so there the
gradients of the trace are used.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.analysis.diagnosis.activities import What
from paceline.analysis.diagnosis.nodes import ROOT, Ended, Graph, Nodes, Rounds

_JUST_THEN = 0.02
"""An activity that begins within this fraction of a computation after another activity's end follows from it."""


def follow_in_order(graph: Graph, nodes: Nodes, rows: range) -> None:
    """Add the edges between the activities of a worker.

    An activity that begins during a computation follows an activity that ended just before (the next step of a
    collective). If there is none, it follows a part of the computation (a bucket was ready).
    """
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


def follow_messages(graph: Graph, nodes: Nodes, rows: range, gradients: frozenset[int]) -> None:
    """Add the edges between the activities of a server. `gradients` are the receipts that count for its updates."""
    ended = Ended(graph, nodes, rows)
    answers = _Answers(graph, nodes, gradients)
    # In the order in which the server handles them: receipts by their end, all other activities by their start.
    for row in sorted(rows, key=lambda row: (nodes.handled_s(row), row)):
        if nodes.what[row] == What.RECEIPT:
            graph.after(ROOT, nodes.begin[row])
            answers.note_receipt(row)
            continue
        place = ended.before(row)
        gap_s = ended.gap_s(row, place)
        works, sends = nodes.what[row] == What.WORK, nodes.what[row] == What.SEND
        if works and answers.begin_round(row, gap_s):
            continue
        if sends and answers.follow_round(row, gap_s):
            continue
        for cause in _causes(nodes, ended, place, whole_round=works):
            graph.after(nodes.end[cause], nodes.begin[row], gap_s)
    if answers.rounds.updates:
        graph.rounds.append(answers.rounds)


class _Answers:
    """The gradient that each send answers, in the order of the server's activities."""

    def __init__(self, graph: Graph, nodes: Nodes, gradients: frozenset[int]) -> None:
        self._graph = graph
        self._nodes = nodes
        self._gradients = gradients
        # For each worker: its gradient without an answer, and the round of that gradient.
        self._open: dict[int, tuple[int, int]] = {}
        self._last = -1
        self._goes_on = False  # whether a gradient is answered although its update needs more of them
        self.rounds = Rounds()

    def note_receipt(self, row: int) -> None:
        if row in self._gradients:
            self._last = row
            self.rounds.replies[self._nodes.end[row]] = None
            self._open[self._nodes.peer[row]] = (row, len(self.rounds.updates))

    def begin_round(self, row: int, gap_s: float) -> bool:
        """Return whether this work is the update of a round: a gradient has arrived since the last one."""
        rounds, counted = self.rounds, len(self.rounds.replies)
        if counted == (rounds.until[-1] if rounds.until else 0):
            return False
        gate = self._graph.add()
        self._graph.after(gate, self._nodes.begin[row], gap_s)
        rounds.until.append(counted)
        rounds.gates.append(gate)
        rounds.updates.append(self._nodes.begin[row])
        return True

    def follow_round(self, row: int, gap_s: float) -> bool:
        """Return whether this send answers a gradient that has arrived."""
        gradient, its_round = self._open.pop(self._nodes.peer[row], (-1, -1))
        if gradient < 0:
            return False
        late = len(self.rounds.updates) - its_round
        if late == 0:
            self._goes_on = True
            self._graph.after(self._nodes.end[gradient], self._nodes.begin[row], gap_s)
        elif late == 1 and self._goes_on and gradient == self._last:
            # This gradient completed an update by chance. Otherwise it would have been answered immediately.
            update_s = self._graph.work_s[self.rounds.updates[-1]]
            self._graph.after(self._nodes.end[gradient], self._nodes.begin[row], gap_s + update_s)
        elif late == 1:
            self.rounds.replies[self._nodes.end[gradient]] = (self._nodes.begin[row], gap_s)
        return late <= 1  # otherwise the answer was delayed until a later update


def _causes(nodes: Nodes, ended: Ended, place: int, *, whole_round: bool) -> Iterator[int]:
    """Yield the causes of a server's next activity. Work (such as an update) is caused by all activities since the
    last work. Any other activity is caused by the last arrival or work, and by the sends after it, because the
    server may have waited for their end.
    """
    found = False
    while place:
        row = ended.row(place)
        place -= 1
        what = nodes.what[row]
        if what == What.SEND and whole_round and not found:
            yield row
        elif what not in (What.SEND, What.EVALUATE):
            if what == What.WORK and found:
                return
            yield row
            found = True
            if what == What.WORK or not whole_round:
                return
