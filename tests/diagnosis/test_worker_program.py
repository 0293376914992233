from traces import compute, ranks, receive, send

from paceline.diagnosis.activities import read_activities
from paceline.diagnosis.graph import build_graph
from paceline.diagnosis.replay import replay


def begins(graph, factor):
    """When each node begins if rank 0 takes `factor` times as long to compute."""
    work_s = list(graph.work_s)
    for rank, node in graph.computations:
        work_s[node] *= factor if rank == 0 else 1.0
    return sorted(set(replay(graph, work_s)))


def test_what_begins_during_a_computation_follows_how_far_it_has_come():
    """A bucket is sent when a quarter is done: in half the time, of a computation that takes half as long."""
    graph = build_graph(
        read_activities(ranks([compute(0, 8), send(2, 3, 1)], [compute(0, 20), receive(20, 20, 0)]))
    )
    assert 1.0 not in begins(graph, 1.0)
    assert 1.0 in begins(graph, 0.5)


def test_what_begins_after_a_computation_follows_its_end_by_the_same_gap():
    graph = build_graph(
        read_activities(ranks([compute(0, 8), send(8.5, 9, 1)], [compute(0, 20), receive(20, 20, 0)]))
    )
    assert 4.5 in begins(graph, 0.5)
