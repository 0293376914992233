"""What is said of runs whose ranks hold parts of the model."""

import pytest
from pieces_models import gpt_task
from tasks import simulated

import paceline as pl
from paceline.diagnosis.diagnose import diagnose
from paceline.diagnosis.words import sentences

CUTS = "cuts=blocks.1+blocks.2"


@pytest.fixture(scope="module")
def even():
    compute = pl.times.Phases("2ms", "2ms", "2ms")
    return pl.train(
        gpt_task(), f"pipeline:{CUTS},microbatches=4", simulated(3, compute=compute, math="none"), steps=3
    )


@pytest.fixture(scope="module")
def uneven():
    cluster = simulated(3, compute=pl.times.Phases("2ms", "2ms", "2ms"), slow={1: 2.0}, math="none")
    return pl.train(gpt_task(), f"pipeline:{CUTS},microbatches=4", cluster, steps=3)


def test_the_bubble_is_told_with_what_makes_it_smaller(even):
    found = diagnose(even)
    assert found.bubble == pytest.approx(even.trace.bubble)
    first, *_ = sentences(found)
    assert first.startswith("In a step the stages do not compute for 3")
    assert "more micro-batches, or another order" in first


def test_a_stage_that_is_slow_is_named_by_its_seconds_of_a_step(uneven):
    slow = diagnose(uneven).compute
    assert (slow.rank, slow.in_pieces, slow.is_slow) == (1, True, True)
    assert slow.seconds == pytest.approx(4 * 2 * 0.006)
    assert slow.factor == pytest.approx(2.0)
    said = " ".join(sentences(diagnose(uneven)))
    assert "Rank 1 is the slowest to compute: 48 ms a step, 2.0 times the others' median of 24 ms" in said
    assert "cuts=… can give its stage fewer layers" in said


def test_what_a_step_would_take_without_it_comes_from_a_replay(even, uneven):
    assert diagnose(uneven).step_without_s == pytest.approx(even.step_seconds, rel=0.05)


def test_where_the_model_is_whole_nothing_is_said_of_bubbles():
    run = pl.train(gpt_task(), "all-reduce", simulated(2), steps=2)
    assert diagnose(run).bubble is None


def test_of_zero_whose_ranks_all_compute_all_segments_nothing_is_said_of_stages_and_cuts():
    run = pl.train(gpt_task(batch_size=12), "zero:stage=3", simulated(3, slow={1: 2.0}), steps=3)
    assert diagnose(run).bubble is None
    said = " ".join(sentences(diagnose(run)))
    assert "Rank 1 is the slowest to compute: 20 ms a step, 2.0 times the others' median of 10 ms." in said
    assert "stage" not in said
    assert "cuts" not in said
