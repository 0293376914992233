"""The timer against published tables and closed forms."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.schedules.pipeline import Action, Phase, pipeline_order
from paceline.testing.pipeline_timing import OrderTiming, time_order

# Qi et al., "Zero Bubble Pipeline Parallelism": p, m, milliseconds of F, B, W and of a message, bubble rates.
PUBLISHED = [
    (8, 24, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1585, 0.1083)),
    (8, 32, (29.802, 29.428, 19.530, 0.577), (0.1898, 0.1045, 0.0559)),
    (16, 48, (11.347, 11.248, 8.132, 0.377), (0.2552, 0.1397, 0.0672)),
    (16, 128, (11.325, 11.308, 8.109, 0.378), (0.1251, 0.0576, 0.0266)),
    (32, 96, (10.419, 10.207, 7.715, 0.408), (0.2646, 0.1421, 0.0641)),
    (32, 128, (10.408, 10.204, 7.703, 0.408), (0.2168, 0.1106, 0.0490)),
]
P, M = st.integers(1, 12), st.integers(1, 40)
SECONDS = st.floats(0.1, 10)


def timed(name: str, p: int, m: int, f: float, b: float, w: float, *, chunks=1, latency_s=0.0) -> OrderTiming:
    costs = {Phase.FORWARD: f, Phase.INPUTS: b, Phase.WEIGHTS: w, Phase.BACKWARD: b + w}
    order = pipeline_order(name, p, m, chunks)
    return time_order(order, lambda action, _: costs[action.phase], latency_s=latency_s, chunks=chunks)


@pytest.mark.parametrize(("p", "m", "costs", "rates"), PUBLISHED)
def test_bubble_rates_are_the_published_ones_to_four_decimals(p: int, m: int, costs, rates):
    f, b, w, latency = costs
    found = [timed(name, p, m, f, b, w, latency_s=latency).bubble for name in ("1f1b", "zb-h1", "zb-h2")]
    assert [round(rate, 4) for rate in found] == list(rates)


@given(P, M, SECONDS, SECONDS, SECONDS)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b_take_m_plus_p_minus_1_turns(name: str, p: int, m: int, f: float, b: float, w: float):
    timing = timed(name, p, m, f, b, w)
    assert timing.makespan_s == pytest.approx((m + p - 1) * (f + b + w))
    assert timing.bubble == pytest.approx((p - 1) / (m + p - 1), abs=1e-9)


@given(P, st.integers(2, 4), st.integers(1, 4))
def test_interleaving_divides_the_bubble_by_the_chunks(p: int, chunks: int, rounds: int):
    m = p * rounds
    ideal_s = m * chunks * 3.0
    timing = timed("interleaved", p, m, 1.0, 1.0, 1.0, chunks=chunks)
    assert timing.makespan_s / ideal_s - 1 == pytest.approx((p - 1) / (chunks * m))


@settings(max_examples=60)
@given(P, st.integers(0, 10), SECONDS, SECONDS, SECONDS)
def test_zb_h1_and_h2_wait_for_what_their_paper_says(p: int, more: int, f: float, b: float, w: float):
    assume(w <= f and w <= b)  # as the paper assumes
    m = 2 * p + more
    ideal_s = m * (f + b + w)
    assert timed("zb-h1", p, m, f, b, w).cost_s - ideal_s == pytest.approx((p - 1) * (f + b - w), abs=1e-9)
    assert timed("zb-h2", p, m, f, b, w).cost_s - ideal_s == pytest.approx(
        (p - 1) * (f + b - 2 * w), abs=1e-9
    )


def test_one_micro_batch_is_one_stage_after_the_other():
    timing = timed("1f1b", 4, 1, 1.0, 1.0, 1.0)
    assert timing.bubble == pytest.approx(3 / 4)


def test_a_message_takes_its_latency_and_none_within_a_rank():
    assert timed("gpipe", 2, 1, 1.0, 1.0, 1.0, latency_s=0.25).makespan_s == pytest.approx(6.5)
    assert timed("interleaved", 1, 1, 1.0, 1.0, 1.0, chunks=2, latency_s=0.25).makespan_s == pytest.approx(
        6.0
    )


def test_the_slowest_stage_sets_the_pace():
    def seconds(action: Action, segment: int) -> float:
        return (3.0 if segment == 1 else 1.0) * (2 if action.phase is Phase.BACKWARD else 1)

    timing = time_order(pipeline_order("1f1b", 3, 30), seconds)
    assert timing.busy_s == (90.0, 270.0, 90.0)
    # It waits only for the first forward pass of the previous stage, and for the last backward pass of that stage.
    assert timing.makespan_s == pytest.approx(1 + 270 + 2)
