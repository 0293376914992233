import math

import pytest

from paceline.analysis.diagnosis.nodes import ROOT, Graph, Rounds
from paceline.analysis.diagnosis.replay import computations_per_s, replay


def test_a_node_begins_when_the_last_of_its_edges_allows_it():
    graph = Graph()
    quick, slow, then = graph.add(1.0), graph.add(3.0), graph.add()
    for node in (quick, slow):
        graph.after(ROOT, node)
        graph.after(node, then, gap_s=0.5)
    assert replay(graph, graph.work_s)[then] == 3.5


def test_an_edge_may_follow_a_share_of_the_work():
    graph = Graph()
    work, bucket = graph.add(8.0), graph.add()
    graph.after(ROOT, work)
    graph.after(work, bucket, share=0.25)
    assert replay(graph, graph.work_s)[bucket] == 2.0


def test_a_resource_serves_one_after_another_the_first_to_ask_first():
    graph = Graph()
    late, early = graph.add(5.0, resource=7), graph.add(5.0, resource=7)
    graph.after(ROOT, late, gap_s=2.0)
    graph.after(ROOT, early, gap_s=1.0)
    begins_s = replay(graph, graph.work_s)
    assert (begins_s[early], begins_s[late]) == (1.0, 6.0)


def test_a_server_updates_when_enough_gradients_are_there_whoever_sent_them():
    """Two gradients per update. The first to arrive are answered first, although the trace has another order."""
    graph, rounds = Graph(), Rounds()
    answers = []
    for come_s in (9.0, 1.0, 2.0, 8.0):
        gradient, answer = graph.add(), graph.add()
        graph.after(ROOT, gradient, come_s)
        rounds.replies[gradient] = (answer, 0.0)
        answers.append(answer)
    for until in (2, 4):
        gate, update = graph.add(), graph.add(0.5)
        graph.after(gate, update)
        rounds.until.append(until)
        rounds.gates.append(gate)
        rounds.updates.append(update)
    graph.rounds.append(rounds)
    begins_s = replay(graph, graph.work_s)
    assert [begins_s[answer] for answer in answers] == [9.5, 2.5, 2.5, 9.5]


def test_what_waits_for_itself_never_begins():
    graph = Graph()
    first, second = graph.add(), graph.add()
    graph.after(first, second)
    graph.after(second, first)
    assert replay(graph, graph.work_s)[first] == math.inf


def test_computations_a_second_are_counted_until_the_first_rank_ends():
    """Both ranks make ten computations: rank 0 one per second, rank 1 two per second. Only the first 4.5 s count."""
    graph = Graph()
    for rank, seconds in enumerate((1.0, 0.5)):
        before = ROOT
        for _ in range(10):
            node = graph.add(seconds)
            graph.after(before, node)
            graph.computations.append((rank, node))
            before = node
    assert computations_per_s(graph, {}) == pytest.approx(3.0)
    assert computations_per_s(graph, {0: 0.5}) == pytest.approx(4.0)
