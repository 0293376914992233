import pytest
from tasks import a_task, simulated

import paceline as pl
from paceline.diagnosis.activities import read_activities
from paceline.diagnosis.graph import build_graph
from paceline.diagnosis.replay import replay
from paceline.trace import Kind

STRATEGIES = [
    "map-reduce",
    "all-reduce:algorithm=ring",
    "all-reduce:algorithm=shared",
    "all-reduce:algorithm=ring,bucket_mb=0.0001",
    "sync:servers=2",
    "k-sync:k=3",
    "async",
    "k-async:k=2",
    "k-batch-async:k=2",
    "ssp:staleness=1",
    "hogwild",
    "decentralized:topology=ring",
    "local-sgd:period=3",
    "fedavg",
]


@pytest.mark.parametrize("link", [pl.Link("1Gbps", "50us"), pl.Link("1Mbps", "1ms")], ids=["quick", "slow"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_replay_without_a_change_is_the_run_itself(strategy, link):
    """Every computation begins when it did."""
    run = pl.train(a_task(), strategy, simulated(4, math="none", slow={3: 4.0}, link=link), steps=24)
    graph = build_graph(read_activities(run.trace.spans))
    begins_s = replay(graph, graph.work_s)
    for spans in run.trace.spans:
        mine = [begins_s[node] for rank, node in graph.computations if rank == spans.rank]
        begun_s = sorted(spans.of(Kind.COMPUTE)["start_s"].tolist())
        assert mine == pytest.approx(begun_s, rel=1e-9, abs=1e-9)


def test_equal_traces_give_equal_graphs():
    graphs = [
        build_graph(
            read_activities(pl.train(a_task(), "sync", simulated(3, math="none"), steps=4).trace.spans)
        )
        for _ in range(2)
    ]
    assert graphs[0] == graphs[1]
