"""Orders that the validator refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, raised

from paceline.schedules.pipeline import ORDERS, Action, Phase, pipeline_order
from paceline.testing.pipeline_orders import OrderError, validate

F, B, W, BW = Phase.FORWARD, Phase.INPUTS, Phase.WEIGHTS, Phase.BACKWARD


def order(*ranks: str):
    """Parse actions in the notation of the messages: "F0 B0 W0"."""
    return tuple(tuple(_action(word) for word in rank.split()) for rank in ranks)


def _action(word: str) -> Action:
    name = word.rstrip("0123456789.")
    micro, _, chunk = word.removeprefix(name).partition(".")
    return Action(Phase(name), int(micro), int(chunk or 0))


@st.composite
def places(draw):
    """An order, and a place in it."""
    name = draw(st.sampled_from(sorted(ORDERS)))
    microbatches, chunks = draw(st.integers(1, 8)), 2 if name == "interleaved" else 1
    made = pipeline_order(name, draw(st.integers(1, 5)), microbatches, chunks)
    rank = draw(st.integers(0, len(made) - 1))
    return made, rank, draw(st.integers(0, len(made[rank]) - 1)), microbatches, chunks


def changed(made, rank: int, actions):
    return (*made[:rank], tuple(actions), *made[rank + 1 :])


@settings(max_examples=150)
@given(places())
def test_an_order_that_lacks_an_action_is_refused(place):
    made, rank, number, microbatches, chunks = place
    actions = [*made[rank][:number], *made[rank][number + 1 :]]
    with pytest.raises(OrderError):
        validate(changed(made, rank, actions), microbatches, chunks)


@settings(max_examples=150)
@given(places())
def test_an_order_that_does_an_action_twice_is_refused(place):
    made, rank, number, microbatches, chunks = place
    with raised(OrderError, rank=rank, action=made[rank][number], fault="twice"):
        validate(changed(made, rank, [*made[rank], made[rank][number]]), microbatches, chunks)


@settings(max_examples=150)
@given(places())
def test_backwards_before_their_forwards_are_refused(place):
    made, rank, _, microbatches, chunks = place
    with raised(OrderError, rank=rank, fault="early"):
        validate(changed(made, rank, reversed(made[rank])), microbatches, chunks)


def test_a_weight_gradient_before_its_input_gradient_is_refused():
    with raised(OrderError, rank=0, action=Action(Phase.WEIGHTS, 0), fault="early", problem=has("B0")):
        validate(order("F0 W0 B0"), 1)


def test_a_micro_batch_or_chunk_that_is_not_there_is_refused():
    with raised(OrderError, rank=0, action=Action(Phase.FORWARD, 1), fault="range", problem=has(1)):
        validate(order("F0 BW0 F1 BW1"), 1)
    with raised(OrderError, action=Action(Phase.FORWARD, 0, 1), fault="range"):
        validate(order("F0 F0.1 BW0.1 BW0"), 1)


def test_ranks_that_wait_for_each_other_are_named():
    # Each rank's own list is sound, but the first wants its first micro-batch back before it sends the second.
    stuck = order("F0 BW0 F1 BW1", "F0 F1 BW0 BW1")
    with raised(OrderError, fault="deadlock", problem=has("rank 0 in BW0", "rank 1 in F1")):
        validate(stuck, 2)


def test_whole_and_parted_backwards_may_stand_side_by_side():
    validate(order("F0 F1 B0 W0 BW1", "F0 BW0 F1 B1 W1"), 2)


def test_micro_batches_may_overtake_each_other():
    # Messages are identified by their micro-batch, so they may arrive in any order.
    validate(order("F0 F1 BW1 BW0", "F1 BW1 F0 BW0"), 2)
