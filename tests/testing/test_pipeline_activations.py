"""Peaks against the published ones (docs: Huang 2019, Narayanan 2021, Qi 2024)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.schedules.pipeline import pipeline_order
from paceline.testing.pipeline_timing import activations

P, M = st.integers(1, 16), st.integers(1, 48)


@given(P, M)
def test_gpipe_keeps_every_micro_batch(stages: int, microbatches: int):
    assert activations(pipeline_order("gpipe", stages, microbatches)) == (microbatches,) * stages


@given(P, M)
def test_1f1b_keeps_as_many_as_there_are_stages_from_here_to_the_end(stages: int, microbatches: int):
    expected = tuple(min(microbatches, stages - stage) for stage in range(stages))
    assert activations(pipeline_order("1f1b", stages, microbatches)) == expected


@given(P, M)
def test_zb_h1_keeps_p_at_every_stage(stages: int, microbatches: int):
    assert activations(pipeline_order("zb-h1", stages, microbatches)) == (min(microbatches, stages),) * stages


@given(P, M)
def test_zb_h2_keeps_almost_twice_as_many(stages: int, microbatches: int):
    peak = min(microbatches, 2 * stages - 1)
    assert activations(pipeline_order("zb-h2", stages, microbatches)) == (peak,) * stages


@given(P, st.integers(2, 5), st.integers(1, 5))
def test_interleaved_keeps_its_first_forwards_and_one_more(stages: int, chunks: int, rounds: int):
    microbatches = stages * rounds
    first = [(chunks - 1) * stages + 2 * (stages - 1 - rank) for rank in range(stages)]
    expected = tuple(min(microbatches * chunks, each + 1) for each in first)
    assert activations(pipeline_order("interleaved", stages, microbatches, chunks)) == expected
