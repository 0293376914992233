"""Every message has the same id at both ends, in every world, so that the cause of each wait is known."""

import itertools
from collections import Counter

import numpy as np
import pytest
from conformance.cases import PASSING_MESSAGES, SHARING_MEMORY, SPECS, make_task, one_in
from tasks import a_task, simulated

import paceline as pl
from paceline.clusters.simulated import whole_collective
from paceline.trace import Kind

LINK = pl.Link("10Mbps", "1ms")
STEPS = 4
PROCESSES = {
    "shared memory": pl.Local(workers=3, threads=1),
    "tcp": pl.Local(workers=3, threads=1, link="tcp"),
    "emulated": pl.Local(workers=3, threads=1, link=LINK, compute=pl.times.Constant(0.002)),
}


def check_ids(run):
    """Return the number of messages, and of meetings."""
    sent = _by_id(run, Kind.SEND)
    received = {n: found for n, found in _by_id(run, Kind.RECEIVE).items() if n >= 0}
    assert all(len(found) == 1 for found in sent.values()), "two messages have one id"
    assert all(len(found) == 1 for found in received.values()), "a message was received twice"
    assert -1 not in sent
    lost = {rank for rank, _ in run.lost}
    for message, ((rank, span),) in received.items():
        if span["peer"] in lost:  # a rank that dies leaves no trace
            continue
        ((source, send),) = sent[message]
        assert (span["peer"], send["peer"], span["nbytes"]) == (source, rank, send["nbytes"])
        assert send["start_s"] <= span["end_s"]
    waits = _by_id(run, Kind.WAIT)
    own = waits.pop(-1, [])
    assert all(span["peer"] == rank for rank, span in own), "a wait for another rank has no cause"
    for message in (message for message in waits if message >= 0):
        assert len(waits[message]) == 1
        assert waits[message][0][0] == received[message][0][0]
    if not lost and not _has_whole_collectives(run):
        assert len(sent) == sum(run.messages_sent)
    return len(received), len(_meetings(run))


def check_meetings(run):
    """Every rank is in a meeting at most once, and no rank leaves the meeting before the last rank has arrived."""
    for spans in _meetings(run).values():
        by_rank = {rank: [span for other, span in spans if other == rank] for rank, _ in spans}
        kinds = [Counter(span["kind"] for span in found) for found in by_rank.values()]
        assert max(count for kind in kinds for count in kind.values()) == 1
        came_s = [min(span["start_s"] for span in found) for found in by_rank.values()]
        left_s = [max(span["end_s"] for span in found) for found in by_rank.values()]
        assert max(came_s) <= min(left_s)


def _by_id(run, *kinds):
    found = {}
    for spans in run.trace.spans:
        for span in spans.of(*kinds):
            if span["kind"] != Kind.RECEIVE or span["message"] != -1:
                found.setdefault(int(span["message"]), []).append((spans.rank, span))
    return found


def _meetings(run):
    return {n: found for n, found in _by_id(run, Kind.WAIT, Kind.RECEIVE).items() if n < -1}


def _has_whole_collectives(run):
    return any((spans.of(Kind.RECEIVE)["message"] < -1).any() for spans in run.trace.spans)


@pytest.mark.parametrize("spec", SPECS)
def test_every_wait_has_a_cause_in_a_simulation(spec):
    cluster = simulated(3, link=LINK, slow={1: 2.0})
    run = pl.train(make_task("batch-not-divisible", "momentum"), spec, cluster, steps=STEPS)
    messages, meetings = check_ids(run)
    check_meetings(run)
    assert messages + meetings > 0 or spec == "single"


@pytest.mark.parametrize(("spec", "world"), one_in(4, itertools.product(PASSING_MESSAGES, PROCESSES)))
def test_every_wait_has_a_cause_in_processes(spec, world):
    run = pl.train(make_task("batch-not-divisible", "momentum"), spec, PROCESSES[world], steps=STEPS)
    check_ids(run)


@pytest.mark.parametrize("spec", SHARING_MEMORY)
def test_barriers_in_shared_memory_are_meetings(spec):
    run = pl.train(a_task(), spec, pl.Local(workers=3, threads=1), steps=STEPS)
    _, meetings = check_ids(run)
    check_meetings(run)
    assert meetings >= (STEPS if "all-reduce" in spec else 0)


def test_collectives_of_another_library_are_meetings():
    run = pl.train(a_task(), "all-reduce:algorithm=native", pl.Local(workers=2, threads=1), steps=STEPS)
    check_meetings(run)
    assert [len(found) for found in _meetings(run).values()] == [2] * STEPS


def test_collectives_timed_as_a_whole_are_meetings_of_all_ranks():
    cluster = simulated(32, math="none", link=LINK, slow={5: 2.0})
    run = pl.train(a_task(batch_size=32), "all-reduce:algorithm=ring", cluster, steps=2)
    check_meetings(run)
    ranks = [{rank for rank, _ in found} for found in _meetings(run).values()]
    assert ranks == [set(range(32))] * 2


@pytest.mark.parametrize("slow", [{}, {1: 2.0}], ids=["alike", "slow"])
def test_stages_timed_as_a_whole_are_meetings_of_their_tensor_group(slow, monkeypatch):
    monkeypatch.setattr(whole_collective, "MANY", 4)
    task = pl.models.GPT(layers=2, hidden=16, heads=4, sequence=8, vocabulary=32, batch_size=4)
    cluster = pl.Simulated(workers=4, math="none", link=LINK, slow=slow, device=pl.devices.A100)
    run = pl.train(task, "hybrid:pipeline=2,tensor=2,microbatches=2", cluster, steps=2)
    check_ids(run)
    check_meetings(run)
    ranks = {frozenset(rank for rank, _ in found) for found in _meetings(run).values()}
    assert ranks == {frozenset({0, 1}), frozenset({2, 3})}


def test_ids_are_those_of_all_messages_when_a_rank_dies():
    cluster = simulated(4, link=LINK, faults=[pl.faults.Kill(2, step=3)])
    run = pl.train(a_task(), "async", cluster, steps=12)
    check_ids(run)
    assert [rank for rank, _ in run.lost] == [2]


def test_a_message_of_a_rank_to_itself_has_no_id():
    run = pl.train(a_task(), "sync:placement=worker", simulated(3, link=LINK), steps=2)
    own = [spans.of(Kind.RECEIVE)[spans.of(Kind.RECEIVE)["peer"] == spans.rank] for spans in run.trace.spans]
    assert np.concatenate([each["message"] for each in own]).tolist() == [-1] * sum(map(len, own))
    assert sum(map(len, own)) > 0
