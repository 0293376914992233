"""Each check reports wrong results and accepts correct ones."""

from dataclasses import replace

import numpy as np
import pytest

from soak.cases import Case, Fault
from soak.checks import Oracles, Seen, check, may_go_on_without

STEPS = 4
CASE = Case(seed=1, spec="sync", workers=2, cluster="memory", hidden=3, samples=8, batch_size=4, steps=STEPS)
SEEN = Seen(
    parameters=np.ones(5),
    steps=[1, 2, 3, 4],
    seconds=[0.1, 0.2, 0.3, 0.4],
    losses=[4.0, 3.0, 2.0, 1.0],
    samples=[4, 8, 12, 16],
    staleness={0: 8},
    bytes_sent=[40, 40, 80],
    messages_sent=[4, 4, 8],
    traced={0: (40, 4), 1: (40, 4), 2: (80, 8)},
)
ORACLES = Oracles(close=SEEN, equal=SEEN, same_bits=True)


def test_a_right_result_violates_nothing():
    assert check(CASE, SEEN, ORACLES) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"parameters": np.ones(5) * (1 + 1e-9)}, "from single"),
        ({"parameters": np.ones(5) * (1 + 1e-15)}, "must have the same bits"),
        ({"parameters": np.ones(4)}, "from single"),
        ({"parameters": np.array([1, 1, np.nan, 1, 1])}, "not finite"),
        ({"steps": [1, 2, 3]}, "3 steps, but 4 were requested"),
        ({"steps": [1, 2, 2, 4]}, "do not count up"),
        ({"seconds": [0.1, 0.3, 0.2, 0.4]}, "seconds decrease"),
        ({"losses": [4.0, 3.0, 2.0, 1.5]}, "losses differ from the simulation"),
        ({"samples": [4, 8, 12, 15]}, "samples differ from the simulation"),
        ({"staleness": {0: 7, 1: 1}}, "staleness up to 1"),
        ({"staleness": {0: 7}}, "staleness counts 7 gradients"),
        ({"traced": {0: (40, 3)}}, "its trace has 40 bytes in 3"),
        ({"bytes_sent": [40, 41, 80], "traced": {}}, "bytes_sent is"),
        ({"messages_sent": [4, 4, 9], "traced": {}}, "messages_sent is"),
        ({"lost": [1]}, "{1} had no fault"),
        ({"error": "DeadlineError", "text": "rank 1 waited"}, "an error that no fault explains"),
    ],
)
def test_a_wrong_result_is_told(wrong, words):
    assert any(words in violation for violation in check(CASE, replace(SEEN, **wrong), ORACLES))


def test_a_loss_that_neither_world_has_is_the_same():
    seen = replace(SEEN, losses=[4.0, float("nan"), 2.0, 1.0])
    assert check(CASE, seen, Oracles(equal=seen, same_bits=True)) == []


def test_of_each_lost_pairwise_peer_one_loss_may_be_unknown():
    case = hit("kill", 1, "decentralized:mode=async")
    nan = float("nan")
    seen = replace(SEEN, lost=[1], fired=True, staleness={}, losses=[4.0, nan, 2.0, 1.0])
    assert check(case, seen, Oracles()) == []
    assert "2 steps have no loss" in check(case, replace(seen, losses=[4.0, nan, nan, 1.0]), Oracles())[0]
    assert "3 steps, but 4" in check(case, replace(seen, steps=[1, 2, 3]), Oracles())[0]


def test_ssp_is_held_to_its_bound():
    case = replace(CASE, spec="ssp:staleness=1", workers=3)
    assert check(case, replace(SEEN, staleness={0: 1, 6: 3}), Oracles()) == []
    assert "allows 6" in check(case, replace(SEEN, staleness={0: 1, 7: 3}), Oracles())[0]


def hit(kind, rank, spec, **changes):
    fault = Fault(kind=kind, rank=rank, since="running", after_s=0.1, seconds=40.0)
    return replace(CASE, spec=spec, workers=3, fault=fault, **changes)


def error(name, text, *blamed):
    return Seen(error=name, text=text, blamed=frozenset(blamed), fired=True)


def test_a_killed_rank_explains_an_error_that_names_it():
    case = hit("kill", 1, "sync")
    assert check(case, error("PeerLost", "rank 1 is lost", 1), Oracles()) == []
    assert "blames [2]" in check(case, error("PeerLost", "rank 2 is lost", 2), Oracles())[0]
    assert "the error is WorkerError" in check(case, error("WorkerError", "rank 1 failed", 1), Oracles())[0]


def test_a_fault_that_did_not_hit_explains_nothing():
    seen = replace(error("PeerLost", "rank 1 is lost", 1), fired=False)
    assert "no fault explains" in check(hit("kill", 1, "sync"), seen, Oracles())[0]


def test_a_pause_explains_no_error():
    seen = error("DeadlineError", "rank 0 waited 60 s in receive for rank 1", 1)
    assert "no fault explains" in check(hit("pause", 1, "sync"), seen, Oracles())[0]


def test_a_run_goes_on_without_a_rank_that_it_can_lose():
    seen = error("PeerLost", "rank 1 is lost", 1)
    assert "could have continued" in check(hit("kill", 1, "async"), seen, Oracles())[0]
    assert check(hit("kill", 3, "async"), error("PeerLost", "rank 3 is lost", 3), Oracles()) == []


@pytest.mark.parametrize(
    ("spec", "rank", "may"),
    [
        ("async", 0, True),
        ("async", 3, False),
        ("async:placement=all", 1, False),
        ("k-sync:k=2", 1, True),
        ("k-sync:k=3", 1, False),
        ("async:servers=2", 1, False),
        ("fedavg", 2, True),
        ("decentralized", 0, False),
        ("decentralized", 2, True),
        ("all-reduce", 1, False),
    ],
)
def test_which_ranks_a_run_can_lose(spec, rank, may):
    assert may_go_on_without(hit("kill", rank, spec), rank) == may


def test_a_stopped_rank_ends_the_run_by_the_deadline_and_not_later():
    case = hit("stop", 1, "sync", deadline_s=5.0)
    named = error("DeadlineError", "rank 0 waited 5 s in receive for rank 1", 1)
    assert check(case, named, Oracles()) == []
    assert "waited 40 s" in check(case, replace(named, outlasted=True), Oracles())[0]
    innocent = error("DeadlineError", "rank 1 waited 5 s in receive for rank 2", 2)
    assert "blames [2]" in check(case, innocent, Oracles())[0]
