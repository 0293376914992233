"""The clocks of several hosts are synchronized, as precisely as requests and answers allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.clusters.hosts.clocks import Clock, Reading, one_clock
from paceline.trace import Kind, Recorder

seconds = st.floats(0, 1e-2)
offsets = st.floats(-1e3, 1e3)


def reading(asked_s: float, offset_s: float, there_s: float, back_s: float) -> Reading:
    return Reading(asked_s, asked_s + there_s + offset_s, asked_s + there_s + back_s)


@given(offsets, seconds, seconds)
def test_the_offset_is_off_by_no_more_than_the_residual(offset_s: float, there_s: float, back_s: float):
    one = reading(100.0, offset_s, there_s, back_s)
    assert abs(one.offset_s - offset_s) <= one.residual_s + 1e-9


def test_equal_ways_there_and_back_give_the_offset_itself():
    assert reading(5.0, 42.0, 1e-3, 1e-3).offset_s == pytest.approx(42.0, abs=1e-12)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=20))
def test_of_several_exchanges_the_quickest_counts(ways: list[tuple[float, float]]):
    clock = Clock()
    for there_s, back_s in ways:
        clock.note(reading(7.0, 3.0, there_s, back_s), at_end=False)
    assert clock.residual_s == pytest.approx(min(a + b for a, b in ways) / 2, abs=1e-9)


def test_a_clock_that_was_never_asked_is_taken_as_it_is():
    assert (Clock().offset_s, Clock().residual_s, Clock().rate) == (0.0, 0.0, 1.0)


def test_a_clock_that_runs_fast_is_slowed_down_to_the_hubs():
    clock = Clock()
    clock.note(reading(0.0, 10.0, 1e-6, 1e-6), at_end=False)
    clock.note(reading(1000.0, 10.1, 1e-6, 1e-6), at_end=True)  # gained 0.1 s in 1,000 s
    recorder = Recorder(0, "worker")
    recorder.add(Kind.COMPUTE, 0.0, 1000.1, -1, 0, 0)
    assert one_clock(recorder.pack(), clock).array["end_s"][0] == pytest.approx(1000.0, abs=1e-4)


def test_what_the_readings_cannot_tell_apart_is_no_gain():
    clock = Clock()
    clock.note(reading(0.0, 10.0, 1e-3, 1e-3), at_end=False)
    clock.note(reading(10.0, 10.0015, 1e-3, 1e-3), at_end=True)
    recorder = Recorder(0, "worker")
    recorder.add(Kind.COMPUTE, 0.0, 1.0, -1, 0, 0)
    spans = recorder.pack()
    assert clock.rate == 1.0
    assert np.array_equal(one_clock(spans, clock).array, spans.array)
