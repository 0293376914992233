import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.trace import SPAN, Kind
from paceline.trace.timeline import NOTHING, PARTS, WAITING, sweep

unhurried = settings(deadline=None, max_examples=60)  # other work may hold the machine up


def array(*spans: tuple[int, float, float]) -> np.ndarray:
    return np.array([(*span, -1, 0, 0, -1) for span in spans], dtype=SPAN)


SPANS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(-3, 23), st.integers(0, 10)).map(
        lambda t: (t[0], t[1], t[1] + t[2])
    ),
    max_size=15,
)


@unhurried
@given(SPANS, st.integers(0, 20))
def test_each_instant_counts_for_the_first_part_under_way(
    spans: list[tuple[int, int, int]], seconds: int
) -> None:
    expected = np.zeros(NOTHING + 1)
    for instant in range(seconds):
        kinds = {Kind(kind) for kind, start, end in spans if start <= instant < end}
        expected[next((i for i, part in enumerate(PARTS) if kinds & set(part)), NOTHING)] += 1
    np.testing.assert_array_equal(sweep(array(*spans), seconds).seconds(), expected)


@unhurried
@given(SPANS, st.integers(0, 20))
def test_stretches_of_waiting_are_apart_and_sum_to_the_waiting(
    spans: list[tuple[int, int, int]], seconds: int
) -> None:
    timeline = sweep(array(*spans), seconds)
    begins, finishes = timeline.waiting()
    assert (begins < finishes).all()
    assert (finishes[:-1] < begins[1:]).all()
    assert (finishes - begins).sum() == timeline.seconds()[WAITING]


@unhurried
@given(st.lists(st.tuples(st.integers(0, 7), st.floats(0, 100), st.floats(0, 10)), max_size=30))
def test_the_parts_sum_to_the_run(spans: list[tuple[int, float, float]]) -> None:
    timeline = sweep(array(*((kind, start, start + long) for kind, start, long in spans)), 60.0)
    assert timeline.seconds().sum() == pytest.approx(60.0)


def test_every_kind_is_in_one_part() -> None:
    assert sorted(kind for part in PARTS for kind in part) == sorted(Kind)


def test_fifty_thousand_overlapping_spans_are_summed_exactly() -> None:
    starts = np.arange(50_000) / 1000
    many = np.zeros(50_000, dtype=SPAN)
    many["start_s"], many["end_s"], many["kind"] = starts, starts + 0.01, np.arange(50_000) % 8
    seconds = sweep(many, 60.0).seconds()
    # One span in eight computes, for 10 ms every 8 ms: from the first on there is always one.
    assert seconds[0] == pytest.approx(49.992 + 0.01)
    assert seconds.sum() == pytest.approx(60.0)
