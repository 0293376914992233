import pytest
from traces import compute, ranks, receive, received, send, span

from paceline.analysis.diagnosis.activities import read_activities
from paceline.analysis.diagnosis.graph import build_graph
from paceline.analysis.diagnosis.replay import replay
from paceline.trace import Kind


def begins(graph, factor):
    """Return the start of each node if rank 0 takes `factor` times as long to compute."""
    work_s = list(graph.work_s)
    for rank, node in graph.computations:
        work_s[node] *= factor if rank == 0 else 1.0
    return sorted(set(replay(graph, work_s)))


def test_what_begins_during_a_computation_follows_how_far_it_has_come():
    """A bucket is sent after a quarter of a computation.

    If the computation takes half as long, it is sent in half the time.
    """
    sender = [compute(0, 8), send(2, 3, 1, message=0)]
    graph = build_graph(read_activities(ranks(sender, [compute(0, 20), receive(20, 20, 0, message=0)])))
    assert 1.0 not in begins(graph, 1.0)
    assert 1.0 in begins(graph, 0.5)


def test_what_begins_after_a_computation_follows_its_end_by_the_same_gap():
    sender = [compute(0, 8), send(8.5, 9, 1, message=0)]
    graph = build_graph(read_activities(ranks(sender, [compute(0, 20), receive(20, 20, 0, message=0)])))
    assert 4.5 in begins(graph, 0.5)


def update(start_s, end_s):
    return span(Kind.UPDATE, start_s, end_s)


BOTH = [*received(0, 1, 1, 0, message=0), *received(1, 5, 5, 1, message=1), update(5, 5.5)]


def graph_of(server, *after):
    """Two workers push at 1 s and at 5 s. The given activities of the server follow, then those of worker 0."""
    workers = [[compute(0, at_s), send(at_s, at_s, 2, message=n)] for n, at_s in enumerate((1.0, 5.0))]
    workers[0] += after
    return build_graph(read_activities(ranks(*workers, server)))


def test_an_update_takes_as_many_gradients_as_it_took():
    each = [
        *received(0, 1, 1, 0, message=0),
        update(1, 1.5),
        *received(1.5, 5, 5, 1, message=1),
        update(5, 5.5),
    ]
    assert [rounds.until for rounds in graph_of(BOTH).rounds] == [[2]]
    assert [rounds.until for rounds in graph_of(each).rounds] == [[1, 2]]


def test_only_the_first_message_after_a_computation_is_a_gradient():
    """Buffers follow the gradient, and a farewell follows no computation.

    In this test they have the gradient's size.
    """
    buffers, farewell = send(1, 1, 2, message=3), send(6, 6, 2, message=4)
    server = [*BOTH[:2], receive(1, 1, 0, message=3), *BOTH[2:], receive(6, 6, 0, message=4), update(6, 7)]
    assert [rounds.until for rounds in graph_of(server, buffers, farewell).rounds] == [[2]]


@pytest.mark.parametrize(("answered_s", "after_update"), [(5.5, True), (1.0, False)])
def test_an_answer_follows_the_update_or_the_gradient_itself(answered_s, after_update):
    (rounds,) = graph_of([*BOTH, send(answered_s, answered_s, 0, message=9)]).rounds
    assert any(reply is not None for reply in rounds.replies.values()) is after_update


def test_a_server_without_updates_has_no_rounds():
    assert graph_of(BOTH[:-1]).rounds == []
