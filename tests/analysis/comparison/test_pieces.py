"""Sentences of comparisons about strategies that split the model."""

import dataclasses

import pytest
from segmented_models import gpt_task
from tasks import simulated

import paceline as pl
from paceline.analysis.comparison.comparison import Comparison
from paceline.analysis.comparison.entry import Entry
from paceline.analysis.comparison.saved import load_entries

SPECS = ["all-reduce", "layers", "pipeline:microbatches=4"]


@pytest.fixture(scope="module")
def found():
    cluster = simulated(2, compute=pl.times.Phases("2ms", "2ms", "2ms"), math="none")
    return pl.compare(gpt_task(), SPECS, cluster, steps=2, baseline=False)


def test_bubbles_are_told_the_smallest_first(found):
    layers, pipeline = (entry.typical.trace.bubble for entry in found.entries[1:])
    said = f"stages do not compute): pipeline:microbatches=4 {pipeline:.0%}, layers {layers:.0%}."
    assert any(sentence.endswith(said) for sentence in found.summary)


def test_who_needs_the_least_memory_and_who_the_most_is_told_with_rank_and_kind(found):
    (said,) = (sentence for sentence in found.summary if "memory" in sentence)
    assert said.startswith("pipeline:microbatches=4 needs the least memory: rank 0 (stage 0 of 2: layers")
    assert "; all-reduce the most: rank 0 holds" in said
    assert said.endswith("% of it activations.")


def test_where_all_hold_all_of_the_model_nothing_is_said_of_memory(found):
    entries = [Entry(name=name, runs=found.entries[0].runs) for name in ("one", "other")]
    assert not any("memory" in each or "ubble" in each for each in Comparison(entries=tuple(entries)).summary)


@pytest.mark.slow
def test_a_saved_comparison_says_the_same_and_one_of_an_older_version_says_nothing_of_it(found, tmp_path):
    found.save(tmp_path)
    loaded = Comparison(entries=tuple(load_entries([tmp_path])))
    assert loaded.summary == found.summary
    assert [row.memory_bytes for row in loaded.table] == [row.memory_bytes for row in found.table]
    assert all(each["memory_bytes"] > 0 for each in found.as_dict()["entries"])
    old = [
        dataclasses.replace(
            each, runs=tuple(dataclasses.replace(run, memory=[], holds=[]) for run in each.runs)
        )
        for each in loaded.entries
    ]
    assert "memory" not in str(Comparison(entries=tuple(old)))
