"""Requirements for every order. A new order of the table is tested automatically."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused, unknown

from paceline.schedules.pipeline import ORDERS, Phase, pipeline_order
from paceline.testing.pipeline_orders import validate
from paceline.testing.pipeline_timing import activations, time_order

EQUAL = {Phase.FORWARD: 1.0, Phase.INPUTS: 1.0, Phase.WEIGHTS: 1.0, Phase.BACKWARD: 2.0}


@st.composite
def sizes(draw):
    name = draw(st.sampled_from(sorted(ORDERS)))
    chunks = draw(st.integers(2, 5)) if name == "interleaved" else 1
    return name, draw(st.integers(1, 12)), draw(st.integers(1, 40)), chunks


@settings(max_examples=200, deadline=None)
@given(sizes())
def test_every_order_is_proved_right_for_any_number_of_ranks_and_micro_batches(size):
    name, stages, microbatches, chunks = size
    validate(pipeline_order(name, stages, microbatches, chunks), microbatches, chunks)


@settings(max_examples=100, deadline=None)
@given(sizes())
def test_no_order_keeps_more_than_all_micro_batches_or_fewer_than_one(size):
    name, stages, microbatches, chunks = size
    for peak in activations(pipeline_order(name, stages, microbatches, chunks)):
        assert 1 <= peak <= microbatches * chunks


@settings(max_examples=100, deadline=None)
@given(sizes())
def test_a_rank_alone_never_waits(size):
    name, _, microbatches, chunks = size
    order = pipeline_order(name, 1, microbatches, chunks)
    timing = time_order(order, lambda action, segment: EQUAL[action.phase], latency_s=1.0, chunks=chunks)
    assert timing.bubble == pytest.approx(0, abs=1e-12)
    assert timing.makespan_s == pytest.approx(3 * microbatches * chunks)


@settings(max_examples=100, deadline=None)
@given(sizes(), st.floats(0, 5))
def test_no_order_is_quicker_than_what_one_rank_computes(size, latency_s: float):
    name, stages, microbatches, chunks = size
    order = pipeline_order(name, stages, microbatches, chunks)
    timing = time_order(
        order, lambda action, segment: EQUAL[action.phase], latency_s=latency_s, chunks=chunks
    )
    assert timing.cost_s >= 3 * microbatches * chunks - 1e-9
    assert timing.makespan_s >= timing.cost_s - 1e-9


def test_orders_go_by_their_names_in_the_literature():
    assert set(ORDERS) == {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2"}


def test_an_order_that_is_not_known_is_refused_with_the_nearest():
    with unknown("order", "1f1", nearest="1f1b"):
        pipeline_order("1f1", 2, 2)


@pytest.mark.parametrize("argument", ["stages", "microbatches", "chunks"])
def test_a_number_below_one_is_refused(argument: str):
    numbers = {"stages": 2, "microbatches": 2, "chunks": 1, argument: 0}
    with refused(argument, 0, bound=has(1)):
        pipeline_order("1f1b", **numbers)


def test_interleaving_one_chunk_is_refused():
    with refused("chunks", 1, bound=has(2), remedy=has("chunks=2")):
        pipeline_order("interleaved", 2, 4, 1)


@pytest.mark.parametrize("name", sorted(set(ORDERS) - {"interleaved"}))
def test_other_orders_have_one_chunk_a_rank(name: str):
    with refused("chunks", 3, bound=has(1), remedy=has("order=interleaved")):
        pipeline_order(name, 2, 4, 3)


def test_orders_are_data_that_needs_no_torch():
    program = "import sys, paceline.schedules.pipeline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
