import pytest
from tasks import a_task, simulated
from traces import compute, ranks, receive, received, send, span, wait

import paceline as pl
from paceline.analysis.diagnosis import blame as module
from paceline.analysis.diagnosis.blame import find_blame
from paceline.trace import Kind


def test_a_chain_of_waits_is_charged_to_its_end():
    # 1 waits for 0, 0 for the server, the server for rank 2, which computes.
    spans = ranks(
        [compute(0, 1), wait(1, 10, 3)],
        [compute(0, 1), wait(1, 10, 0)],
        [compute(0, 10)],
        [wait(0, 10, 2)],
        roles=["worker", "worker", "worker", "server"],
    )
    found = find_blame(spans, 10.0)
    assert found.ranks == {2: pytest.approx(18.0)}
    assert found.idle_s == pytest.approx(18.0)
    assert found.worst == 2
    assert found.share(2) == pytest.approx(1.0)


def test_ranks_that_wait_for_each_other_wait_for_the_link():
    found = find_blame(ranks([compute(0, 1), wait(1, 3, 1)], [compute(0, 1), wait(1, 3, 0)]), 3.0)
    assert found.ranks == {}
    assert found.links_s == pytest.approx(4.0)
    assert found.worst is None


def test_who_waits_for_a_message_under_way_waits_for_the_link():
    found = find_blame(ranks([compute(0, 1), wait(1, 3, 1)], [compute(0, 1), receive(1, 3, 0)]), 3.0)
    assert found.links_s == pytest.approx(2.0)


def test_a_rank_is_not_to_blame_after_it_has_sent_the_awaited_message():
    """Rank 1 sends at 2 s, and computes on. The message takes until 5 s."""
    sender = [compute(0, 2), send(2, 2, 0, message=7), compute(2, 9)]
    found = find_blame(ranks([compute(0, 1), *received(1, 5, 6, 1, message=7), compute(6, 9)], sender), 9.0)
    assert found.ranks == {1: pytest.approx(1.0)}
    assert found.links_s == pytest.approx(3.0)


def test_nobody_is_to_blame_for_evaluation():
    found = find_blame(ranks([compute(0, 1), wait(1, 3, 1)], [compute(0, 1), span(Kind.EVALUATE, 1, 3)]), 3.0)
    assert found.time_s == pytest.approx(2.0), "what the two computed"
    assert found.idle_s == 0.0
    assert found.share(1) == 0.0


def test_time_in_no_span_is_idle_and_nobodys_fault():
    found = find_blame(ranks([compute(0, 1)], [compute(0, 3)]), 3.0)
    assert found.idle_s == pytest.approx(2.0)
    assert found.ranks == {}


def test_a_run_without_spans_blames_nobody():
    assert find_blame([], 1.0).idle_s == 0.0


@pytest.mark.parametrize("strategy", ["map-reduce", "all-reduce:algorithm=ring", "sync"])
def test_a_slow_rank_causes_nearly_all_idle_time_of_a_synchronous_strategy(strategy):
    cluster = simulated(4, math="none", slow={3: 4.0}, link=pl.Link("10Gbps", "50us"))
    run = pl.train(a_task(), strategy, cluster, steps=100)
    assert find_blame(run.trace.spans, run.trace.seconds).share(3) > 0.97


def test_a_long_run_is_looked_at_in_cells(monkeypatch):
    run = pl.train(a_task(), "sync", simulated(4, math="none", slow={3: 4.0}), steps=50)
    exact = find_blame(run.trace.spans, run.trace.seconds)
    monkeypatch.setattr(module, "_MOST_CELLS", 500)
    coarse = find_blame(run.trace.spans, run.trace.seconds)
    assert coarse.idle_s == pytest.approx(exact.idle_s, rel=0.02)
    assert coarse.share(3) == pytest.approx(exact.share(3), abs=0.02)


def test_the_charges_of_the_pairs_add_up_to_those_of_the_ranks():
    run = pl.train(a_task(), "all-reduce:algorithm=ring", simulated(4, math="none", slow={2: 3.0}), steps=9)
    blame = find_blame(run.trace.spans, run.trace.seconds)
    assert blame.worst == 2
    assert all(waiter != cause for waiter, cause in blame.pairs)
    for rank, charged_s in blame.ranks.items():
        assert sum(s for (_, cause), s in blame.pairs.items() if cause == rank) == pytest.approx(charged_s)
