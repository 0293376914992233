"""Codecs in plans."""

import pytest
from refusals import refused
from small_plans import aimed, cluster, mlp

import paceline as pl

SLOW_LINK = pl.Link("100kbps", "50us")
NAMES = ["single", "all-reduce", "sync", "zero"]


def planned(task, strategies=NAMES, **words):
    where = pl.Simulated(2, compute=pl.times.Constant("10ms"), link=SLOW_LINK)
    return pl.plan(task, where, strategies=strategies, workers=2, **words)


@pytest.fixture(scope="module")
def plan():
    return planned(mlp(), codecs="bf16,topk-0.1")


def test_each_codec_is_tried_with_the_strategies_that_have_codecs(plan):
    encoded = [entry for entry in plan.entries if entry.codec is not None]
    assert {entry.codec for entry in encoded} == {"bf16", "topk-0.1"}
    assert {entry.family for entry in encoded} == {"all-reduce", "sync"}


def test_fewer_bytes_take_less_time_on_a_slow_link(plan):
    plain = min(e.batch_seconds for e in plan.entries if e.family == "all-reduce" and e.codec is None)
    encoded = min(e.batch_seconds for e in plan.entries if e.family == "all-reduce" and e.codec == "bf16")
    assert encoded < 0.8 * plain


def test_without_a_target_codecs_are_not_ranked_and_their_effect_is_not_estimated(plan):
    assert all(entry.codec is None for entry in plan.ranked)
    assert not any(entry.equals_single for entry in plan.entries if entry.codec is not None)
    assert "not estimated" in plan.summary[-1]


def test_with_a_target_their_effect_is_estimated_by_simulations():
    found = planned(aimed(), ["all-reduce"], codecs=["bf16"])
    encoded = [entry for entry in found.ranked if entry.codec is not None]
    assert encoded
    assert all(entry.target is not None for entry in encoded)
    assert "not estimated" not in found.summary[-1]


def test_an_entry_with_a_codec_runs(plan):
    entry = next(entry for entry in plan.entries if entry.codec == "bf16")
    assert pl.train(mlp(), entry, cluster(2), steps=2).strategy == entry.strategy


def test_without_codecs_none_are_tried():
    assert all(entry.codec is None for entry in planned(mlp()).entries)


@pytest.mark.parametrize(("words", "argument"), [("int3", "codec"), ("topk", "codec")])
def test_unknown_codecs_are_refused(words, argument):
    with refused(argument):
        planned(mlp(), codecs=words)
