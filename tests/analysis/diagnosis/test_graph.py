import itertools

import pytest
from conformance.cases import SPECS, make_task
from tasks import a_task, simulated
from traces import compute, ranks, receive, received, send, wait

import paceline as pl
from paceline.analysis.diagnosis.activities import read_activities
from paceline.analysis.diagnosis.graph import build_graph
from paceline.analysis.diagnosis.replay import replay
from paceline.trace import COMPUTING

LINKS = {"quick": pl.Link("1Gbps", "50us"), "slow": pl.Link("1Mbps", "1ms")}
STRATEGIES = [
    *(spec for spec in SPECS if spec != "pipeline"),
    "all-reduce:algorithm=tree",
    "k-sync:k=3",
    "k-async:k=2",
    "k-batch-async:k=2",
    "ssp:staleness=1",
    "local-sgd:period=3",
]


def check_replays(strategy, link, tolerance_s=1e-9):
    """Every computation begins at its recorded time."""
    task = make_task("batch-not-divisible", "momentum")
    run = pl.train(task, strategy, simulated(4, math="none", slow={3: 4.0}, link=link), steps=24)
    graph = build_graph(read_activities(run.trace.spans))
    begins_s = replay(graph, graph.work_s)
    for spans in run.trace.spans:
        mine = sorted(begins_s[node] for rank, node in graph.computations if rank == spans.rank)
        begun_s = sorted(spans.of(*COMPUTING)["start_s"].tolist())
        assert mine == pytest.approx(begun_s, rel=1e-9, abs=tolerance_s)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_replay_without_a_change_is_the_run_itself(strategy, link):
    check_replays(strategy, LINKS[link])


def test_a_pipeline_is_replayed_up_to_the_order_of_messages_that_meet_in_a_port():
    check_replays("pipeline", LINKS["slow"], tolerance_s=0.001)


def edges_of(graph, node):
    return {then for then, _, _ in graph.edges[node]}


def reaches(graph, first, last):
    """Whether `last` cannot begin before `first` has begun."""
    seen, todo = {first}, [first]
    while todo:
        new = edges_of(graph, todo.pop()) - seen
        seen |= new
        todo += new
    return last in seen


def test_the_causes_in_a_small_run_are_those_found_by_hand():
    """Ranks 0 and 1 compute, and each sends to rank 2, which receives in the other order, computes, and answers rank 1.

    Ranks 0 and 1 then meet at a barrier. Of the six computations only these follow one another.
    """
    graph = build_graph(
        read_activities(
            ranks(
                [compute(0, 1), send(1, 2, 2, message=10), wait(2, 20, 1, message=-5), compute(20, 21)],
                [
                    *(compute(0, 3), send(3, 4, 2, message=11), *received(4, 15, 16, 2, message=12)),
                    *(compute(16, 20), compute(20, 21)),
                ],
                [
                    *(*received(0, 4, 5, 1, message=11), compute(5, 14), send(14, 15, 1, message=12)),
                    receive(15, 15, 0, message=10),
                ],
            )
        )
    )
    first_0, last_0, first_1, middle_1, last_1, only_2 = (node for _, node in graph.computations)
    assert [rank for rank, _ in graph.computations] == [0, 0, 1, 1, 1, 2]
    found = {
        (a, b)
        for a, b in itertools.permutations([node for _, node in graph.computations], 2)
        if reaches(graph, a, b)
    }
    assert found == {
        *((first_1, only_2), (only_2, middle_1), (only_2, last_0), (only_2, last_1)),  # messages 11 and 12
        *((first_1, middle_1), (first_1, last_1), (middle_1, last_1)),  # the program of rank 1
        *((first_0, last_0), (first_0, last_1)),  # rank 0 arrives at the barrier
        *((first_1, last_0), (middle_1, last_0)),  # rank 1 comes last
    }


def test_equal_traces_give_equal_graphs():
    graphs = [
        build_graph(
            read_activities(pl.train(a_task(), "sync", simulated(3, math="none"), steps=4).trace.spans)
        )
        for _ in range(2)
    ]
    assert graphs[0] == graphs[1]
