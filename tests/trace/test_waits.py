import pytest

from paceline.trace import Kind, Recorder, Spans, Straggler
from paceline.trace.timeline import sweep
from paceline.trace.waits import Waits, find_waits

Row = tuple[Kind, float, float, int]


def waits_of(ranks: dict[int, list[Row]], seconds: float = 100.0) -> Waits:
    spans: list[Spans] = []
    for rank, rows in ranks.items():
        recorder = Recorder(rank, "worker")
        for kind, start, end, peer in rows:
            recorder.add(kind, start, end, peer, 0, 0)
        spans.append(recorder.pack())
    return find_waits(spans, {each.rank: sweep(each.array, seconds) for each in spans})


def wait(start: float, end: float, peer: int) -> Row:
    return (Kind.WAIT, start, end, peer)


def compute(start: float, end: float) -> Row:
    return (Kind.COMPUTE, start, end, -1)


def test_waits_are_summed_by_waiter_and_awaited() -> None:
    found = waits_of(
        {0: [wait(1, 2, 1), wait(4, 7, 1), wait(8, 9, 2)], 1: [compute(0, 9)], 2: [wait(0, 2, 1)]}
    )
    assert found.pairs == {(0, 1): 4.0, (0, 2): 1.0, (2, 1): 2.0}
    assert found.stragglers == [Straggler(1, 6.0, 3), Straggler(2, 1.0, 1)]


def test_a_wait_for_anybody_charges_nobody() -> None:
    assert waits_of({0: [wait(0, 5, -1)], 1: []}) == Waits({}, [])


def test_in_a_ring_only_the_slow_rank_is_charged() -> None:
    ring = {rank: [compute(0, 1), wait(1, 10, rank - 1 if rank else 3)] for rank in range(3)}
    ring[3] = [compute(0, 10)]
    found = waits_of(ring)
    assert found.pairs == {(0, 3): 9.0, (1, 0): 9.0, (2, 1): 9.0}
    assert found.stragglers == [Straggler(3, 9.0, 1)]


def test_two_that_wait_for_each_other_blame_the_link() -> None:
    found = waits_of({0: [wait(0, 5, 1)], 1: [wait(2, 5, 0)]})
    assert found.pairs == {(0, 1): 5.0, (1, 0): 3.0}
    assert found.stragglers == [Straggler(1, 2.0, 1)]


def test_a_wait_that_computing_hides_is_none() -> None:
    found = waits_of({0: [wait(0, 10, 1), compute(2, 5), compute(8, 12)], 1: [compute(0, 10)]})
    assert found.pairs == {(0, 1): 5.0}
    assert found.stragglers == [Straggler(1, 5.0, 2)]
    assert waits_of({0: [wait(0, 10, 1), compute(0, 10)], 1: []}) == Waits({}, [])


def test_one_who_only_seems_to_wait_is_charged() -> None:
    found = waits_of({0: [wait(0, 4, 1)], 1: [wait(0, 4, 2), compute(0, 4)], 2: []})
    assert found.stragglers == [Straggler(1, 4.0, 1)]


def test_two_waits_for_one_rank_at_a_time_count_once() -> None:
    found = waits_of({0: [wait(0, 4, 1), wait(1, 3, 1), wait(2, 6, 1)], 1: []})
    assert found.pairs == {(0, 1): 6.0}
    assert found.stragglers[0].seconds == 6.0


def test_a_rank_without_a_trace_can_be_awaited() -> None:
    assert waits_of({0: [wait(0, 4, 9)]}).stragglers == [Straggler(9, 4.0, 1)]


def test_waits_count_up_to_the_end_of_the_run() -> None:
    assert waits_of({0: [wait(3, 9, 1)], 1: []}, seconds=5.0).pairs == {(0, 1): 2.0}


def test_the_worst_comes_first_and_the_lower_rank_among_equals() -> None:
    found = waits_of({0: [wait(0, 1, 3), wait(1, 2, 2), wait(2, 5, 1)], 1: [], 2: [], 3: []})
    assert [straggler.rank for straggler in found.stragglers] == [1, 2, 3]
    assert sum(straggler.seconds for straggler in found.stragglers) == pytest.approx(
        sum(found.pairs.values())
    )
