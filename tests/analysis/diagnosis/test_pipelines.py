"""Sentences about runs in which ranks hold parts of the model."""

import pytest
from segmented_models import gpt_task
from tasks import simulated

import paceline as pl
from paceline.analysis.diagnosis.diagnose import diagnose
from paceline.analysis.diagnosis.words import sentences

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
    assert found.stages.bubble == pytest.approx(even.trace.bubble)
    first, *_ = sentences(found)
    assert first.startswith("In a step the stages do not compute for 3")
    assert "more micro-batches or another order" in first


def test_a_stage_that_is_slow_is_named_by_its_seconds_of_a_step(uneven):
    slow = diagnose(uneven).compute
    assert (slow.rank, slow.in_pieces, slow.is_slow) == (1, True, True)
    assert slow.seconds == pytest.approx(4 * 2 * 0.006)
    assert slow.factor == pytest.approx(2.0)
    said = " ".join(sentences(diagnose(uneven)))
    who = "Rank 1 (stage 1 of 3: layer blocks.1)"
    assert f"{who} is the slowest to compute: 48 ms a step, 2.0 times the others' median of 24 ms" in said
    assert "cuts=… can give its stage fewer layers" in said


def test_stages_that_wait_unevenly_are_named_with_their_layers(even, uneven):
    assert "unevenly" not in " ".join(sentences(diagnose(even)))
    waits = diagnose(uneven).stages.waits
    assert min(waits, key=waits.get) == 1
    said = " ".join(sentences(diagnose(uneven)))
    assert f"(stage 1 of 3: layer blocks.1) for {waits[1]:.0%}" in said
    assert "more micro-batches" not in said, "they do not help against a slow stage"


def test_stages_that_take_turns_are_told_of_micro_batches():
    run = pl.train(gpt_task(), "layers", simulated(3, math="none"), steps=2)
    assert (
        "they compute in turn, one batch at a time; pipeline splits the batch into micro-batches."
        in sentences(diagnose(run))[0].removeprefix("In a step ")
    )


@pytest.mark.slow
def test_a_mesh_has_a_bubble_too_but_micro_batches_are_not_all_of_it():
    run = pl.train(gpt_task(), "hybrid:pipeline=2,tensor=2", simulated(4, math="none"), steps=2)
    (bubble,) = (each for each in sentences(diagnose(run)) if "bubble" in each)
    assert bubble.endswith("(the bubble).")


def test_who_holds_most_is_told_with_what_it_is(even):
    held = [each["total"] for each in even.memory]
    found = diagnose(even).peak
    assert (found.rank, found.total_bytes) == (held.index(max(held)), max(held))
    assert sum(found.shares.values()) == pytest.approx(1.0)
    first, share = next(iter(found.shares.items()))
    assert (first, share) == (
        "activations",
        pytest.approx(even.memory[found.rank]["activations"] / max(held)),
    )
    said = sentences(diagnose(even))[-1]
    assert said.startswith("Rank 0 (stage 0 of 3: layers tokens … blocks.0) holds the most: ")
    assert said.endswith(f"times the others' median, {share:.0%} of it activations.")


def test_what_a_step_would_take_without_it_comes_from_a_replay(even, uneven):
    assert diagnose(uneven).step_without_s == pytest.approx(even.step_seconds, rel=0.05)


def test_where_the_model_is_whole_nothing_is_said_of_bubbles_and_of_memory():
    run = pl.train(gpt_task(), "all-reduce", simulated(2), steps=2)
    assert sentences(diagnose(run)) == ["No rank is much slower than the others."]
    assert diagnose(run).stages is None


@pytest.mark.slow
def test_of_zero_whose_ranks_all_compute_all_segments_nothing_is_said_of_stages_and_cuts():
    run = pl.train(gpt_task(batch_size=12), "zero:stage=3", simulated(3, slow={1: 2.0}), steps=3)
    assert diagnose(run).stages is None
    said = " ".join(sentences(diagnose(run)))
    who = "Rank 1 (all layers, shard 1 of 3)"
    assert f"{who} is the slowest to compute: 20 ms a step, 2.0 times the others' median of 10 ms." in said
    assert "No rank holds much more memory than the others: at most " in said
    assert "stage" not in said
    assert "cuts" not in said
