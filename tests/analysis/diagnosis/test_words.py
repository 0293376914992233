import dataclasses

import pytest
from tasks import a_task, simulated

import paceline as pl
from paceline.analysis.diagnosis.blame import Blame
from paceline.analysis.diagnosis.diagnose import SlowLink, diagnose
from paceline.analysis.diagnosis.words import sentences


def diagnosed(strategy, **cluster):
    link = pl.Link("1Gbps", "50us")
    return diagnose(pl.train(a_task(), strategy, simulated(4, math="none", link=link, **cluster), steps=100))


def test_a_slow_rank_is_told_with_what_it_costs_and_what_would_be_without_it():
    assert sentences(diagnosed("map-reduce", slow={3: 4.0})) == [
        "Rank 3 is the slowest to compute: 40 ms a gradient, 4.0 times the others' median of 10 ms.",
        "It causes 98% of the workers' idle time, which is 56% of all their time.",
        "If it computed as quickly as the others, a step would take 10.1 ms instead of 40.1 ms "
        "(by a replay of the trace).",
    ]


def test_where_nobody_waits_for_it_that_is_told():
    assert "The others hardly wait for it." in sentences(diagnosed("async", slow={3: 4.0}))


def test_of_cancelled_computations_the_trace_cannot_tell():
    said = sentences(diagnosed("k-sync:k=3", slow={3: 4.0}))
    assert "all of its computations were cancelled" in said[0]
    assert "is unknown: cancelled computations have no known end" in said[-1]


def test_a_trace_of_an_older_version_has_no_step_time_without_the_slow_rank():
    found = dataclasses.replace(diagnosed("map-reduce", slow={3: 4.0}), has_causes=False, step_without_s=None)
    assert "an older version" in sentences(found)[-1]


def test_equal_ranks_are_told_in_one_sentence():
    assert sentences(diagnosed("map-reduce")) == ["No rank is much slower than the others."]


def test_a_rank_that_is_waited_for_without_being_slow_is_told():
    found = dataclasses.replace(
        diagnosed("map-reduce"), idle_share=0.4, blame=Blame(10.0, {2: 8.0}), link=None
    )
    assert sentences(found) == [
        "Rank 2 causes 80% of the workers' idle time, although it computes as quickly as the others."
    ]


@pytest.mark.parametrize(("links_s", "told"), [(5.0, True), (0.1, False)])
def test_slow_links_are_told_where_they_cost_something(links_s, told):
    link = SlowLink(rank=1, factor=2.5)
    found = dataclasses.replace(diagnosed("map-reduce"), blame=Blame(10.0, {}, links_s), link=link)
    line = "Messages to and from rank 1 take 2.5 times as long as others of their size."
    assert (line in sentences(found)) is told


def test_a_second_cause_of_much_waiting_is_named_too():
    delay = {1: pl.times.Exponential(mean="30ms")}
    said = sentences(diagnosed("all-reduce", slow={3: 4.0}, delay=delay))
    assert said[0].startswith("Rank 3 is the slowest")
    assert any(each.startswith("Rank 1 causes") and "vary" in each for each in said)


def test_messages_that_cost_much_are_named():
    cluster = simulated(4, math="none", link=pl.Link("1Mbps", "20ms"))
    run = pl.train(a_task(), "all-reduce:algorithm=ring", cluster, steps=20)
    assert any(each.startswith("Messages in flight cause") for each in sentences(diagnose(run)))


@pytest.mark.parametrize(("without_s", "improves"), [(2.73e-3, False), (2.66e-3, False), (2.0e-3, True)])
def test_a_step_that_would_not_be_shorter_is_no_improvement(without_s, improves):
    found = dataclasses.replace(
        diagnosed("map-reduce", slow={3: 4.0}), step_s=2.67e-3, step_without_s=without_s
    )
    assert any("instead of 2.67 ms" in each for each in sentences(found)) is improves
