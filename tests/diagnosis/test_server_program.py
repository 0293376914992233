import pytest
from traces import compute, ranks, receive, send, span, wait

from paceline.diagnosis.activities import read_activities
from paceline.diagnosis.graph import build_graph
from paceline.trace import Kind


def update(start_s, end_s):
    return span(Kind.UPDATE, start_s, end_s)


def graph_of(server):
    """Two workers push at 1 s and at 5 s; the server does what is given."""
    workers = [[compute(0, at_s), send(at_s, at_s, 2)] for at_s in (1.0, 5.0)]
    return build_graph(read_activities(ranks(*workers, server)))


def test_an_update_takes_as_many_gradients_as_it_took():
    both = [wait(0, 1, 0), receive(1, 1, 0), wait(1, 5, 1), receive(5, 5, 1), update(5, 5.5)]
    each = [
        wait(0, 1, 0),
        receive(1, 1, 0),
        update(1, 1.5),
        wait(1.5, 5, 1),
        receive(5, 5, 1),
        update(5, 5.5),
    ]
    assert [rounds.until for rounds in graph_of(both).rounds] == [[2]]
    assert [rounds.until for rounds in graph_of(each).rounds] == [[1, 2]]


@pytest.mark.parametrize(("answered_s", "after_update"), [(5.5, True), (1.0, False)])
def test_an_answer_follows_the_update_or_the_gradient_itself(answered_s, after_update):
    server = [wait(0, 1, 0), receive(1, 1, 0), wait(1, 5, 1), receive(5, 5, 1), update(5, 5.5)]
    server.append(send(answered_s, answered_s, 0))
    (rounds,) = graph_of(server).rounds
    assert any(reply is not None for reply in rounds.replies.values()) is after_update


def test_a_server_without_updates_has_no_rounds():
    assert graph_of([wait(0, 1, 0), receive(1, 1, 0), wait(1, 5, 1), receive(5, 5, 1)]).rounds == []
