from paceline.analysis.diagnosis.activities import What
from paceline.analysis.diagnosis.nodes import ROOT, Ended, Graph, Nodes


def a_rank():
    """Three activities: the second ends before the first."""
    nodes = Nodes(
        what=[What.COMPUTE, What.SEND, What.WORK],
        start_s=[0.0, 1.0, 9.0],
        end_s=[8.0, 2.0, 10.0],
        work_s=[8.0, 1.0, 1.0],
        peer=[-1, 1, -1],
    )
    graph = Graph()
    for seconds in nodes.work_s:
        nodes.begin.append(graph.add(seconds))
    nodes.end = list(nodes.begin)
    return graph, Ended(graph, nodes, range(3))


def test_activities_are_kept_in_the_order_of_their_ends():
    _, ended = a_rank()
    assert [ended.row(place) for place in (0, 1, 2, 3)] == [-1, 1, 0, 2]


def test_what_had_ended_before_an_activity_is_counted_with_the_gap_to_it():
    _, ended = a_rank()
    assert [ended.before(row) for row in range(3)] == [0, 0, 2]
    assert ended.gap_s(2, 2) == 1.0
    assert ended.gap_s(1, 0) == 1.0


def test_nothing_is_over_at_the_beginning():
    graph, ended = a_rank()
    assert ended.all_until(0) == ROOT
    assert ended.all_until(2) == ended.all_until(2) != ended.all_until(1)
    assert len(graph.edges) == len(graph.work_s)
