"""What a server's activities wait for: what led to them, and nothing else.

A server takes what comes first. So a receipt waits for its message only, an update for as many gradients as went into
it, whoever's they are, and a send for what made the server send: the update, or a gradient that it answers.
With several servers the first tells the others which gradients make up an update, so there they are those of the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from paceline.diagnosis.activities import What
from paceline.diagnosis.nodes import ROOT, Ended, Graph, Nodes, Rounds

__all__ = ["follow_what_comes"]


def follow_what_comes(graph: Graph, nodes: Nodes, rows: range, servers: frozenset[int]) -> None:
    """Join the activities of a server."""
    ended = Ended(graph, nodes, rows)
    gradients = _gradients(nodes, rows) if len(servers) == 1 else frozenset()
    answers = _Answers(graph, nodes, gradients)
    for row in rows:
        if nodes.what[row] == What.RECEIPT:
            graph.after(ROOT, nodes.begin[row])
    for row in sorted(rows, key=lambda row: (_moment_s(nodes, row), row)):
        if nodes.what[row] == What.RECEIPT:
            answers.note_receipt(row)
            continue
        place = ended.before(row)
        gap_s = ended.gap_s(row, place)
        if nodes.what[row] == What.WORK and answers.begin_round(row, gap_s):
            continue
        if nodes.what[row] == What.SEND and answers.follow_round(row, gap_s):
            continue
        for cause in _causes(nodes, ended, place, whole_round=nodes.what[row] == What.WORK):
            graph.after(nodes.end[cause], nodes.begin[row], gap_s)
    if answers.rounds.updates:
        graph.rounds.append(answers.rounds)


def _moment_s(nodes: Nodes, row: int) -> float:
    """When a server deals with it: a receipt when it is there, anything else when it begins."""
    return nodes.end_s[row] if nodes.what[row] == What.RECEIPT else nodes.start_s[row]


def _gradients(nodes: Nodes, rows: range) -> frozenset[int]:
    """The receipts of gradients: those of the size that is the most frequent. Others are buffers and farewells.

    What a rank sent that died, and left no trace, is not waited for.
    """
    receipts = [row for row in rows if row in nodes.received]
    sizes = Counter(nodes.nbytes[row] for row in receipts)
    usual = sizes.most_common(1)[0][0] if sizes else 0
    return frozenset(row for row in receipts if nodes.nbytes[row] == usual)


class _Answers:
    """Which gradient each send answers, as the server goes through its activities."""

    def __init__(self, graph: Graph, nodes: Nodes, gradients: frozenset[int]) -> None:
        self._graph = graph
        self._nodes = nodes
        self._gradients = gradients
        self._open: dict[
            int, tuple[int, int]
        ] = {}  # of each worker: its gradient without an answer, and its round
        self._last = -1
        self._counted = 0
        self._goes_on = False  # whether a gradient is answered though its update needs more of them
        self.rounds = Rounds()

    def note_receipt(self, row: int) -> None:
        if row in self._gradients:
            self._counted += 1
            self._last = row
            self.rounds.replies[self._nodes.end[row]] = None
            self._open[self._nodes.peer[row]] = (row, len(self.rounds.updates))

    def begin_round(self, row: int, gap_s: float) -> bool:
        """Whether this work is the update of a round: some gradient has come since the last."""
        if not self._counted or (self.rounds.until and self.rounds.until[-1] == self._counted):
            return False
        gate = self._graph.add()
        self._graph.after(gate, self._nodes.begin[row], gap_s)
        self.rounds.until.append(self._counted)
        self.rounds.gates.append(gate)
        self.rounds.updates.append(self._nodes.begin[row])
        return True

    def follow_round(self, row: int, gap_s: float) -> bool:
        """Whether this send answers a gradient that has come."""
        gradient, its_round = self._open.pop(self._nodes.peer[row], (-1, -1))
        if gradient < 0:
            return False
        late = len(self.rounds.updates) - its_round
        if late == 0:
            self._goes_on = True
            self._graph.after(self._nodes.end[gradient], self._nodes.begin[row], gap_s)
        elif late == 1 and self._goes_on and gradient == self._last:
            # It happened to complete an update; another time it may not, and be answered at once.
            update_s = self._graph.work_s[self.rounds.updates[-1]]
            self._graph.after(self._nodes.end[gradient], self._nodes.begin[row], gap_s + update_s)
        elif late == 1:
            self.rounds.replies[self._nodes.end[gradient]] = (self._nodes.begin[row], gap_s)
        return late <= 1  # else it was held back until some later update


def _causes(nodes: Nodes, ended: Ended, place: int, *, whole_round: bool) -> Iterator[int]:
    """What led a server to what it did next: the last that came or was done; all since the last work for work.

    Sends that followed it count too, for a server may have waited for their end; earlier ones do not.
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
