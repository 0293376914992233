import dataclasses

import pytest
from chosen_runs import entry, run_of, with_figures

from paceline.analysis.comparison.entry import Entry
from paceline.analysis.comparison.summary import summary

METRICS = (0.5, 0.9, 0.98)


@pytest.fixture(scope="module")
def single():
    return with_figures(run_of("single", workers=1), metrics=METRICS, target=0.97, step_s=4.0)


@pytest.fixture(scope="module")
def waiting():
    return with_figures(
        run_of("all-reduce", slow={3: 4.0}, steps=40), metrics=METRICS, target=0.97, step_s=2.0
    )


@pytest.fixture(scope="module")
def discarding():
    return with_figures(run_of("k-sync:k=3", slow={3: 4.0}, steps=40), metrics=METRICS, target=0.97)


def test_the_winner_is_named_with_its_lead_and_the_reason(single, waiting, discarding):
    said = summary([entry(single), entry(waiting), entry(discarding)])
    assert (
        said[0]
        == "k-sync:k=3 wins: it reaches 0.97 after 3 s, 2.00 times as soon as all-reduce, the second best."
    )
    assert said[1] == "all-reduce waits 56% of the time for rank 3; k-sync:k=3 discards it."
    assert said[2].startswith("In all-reduce: Rank 3 is the slowest to compute")
    assert (
        said[-1] == "Speed-up is relative to single: one worker that processes the whole batch of every step."
    )


def test_what_was_emulated_is_told_and_who_was_too_slow_for_it(single, discarding):
    emulated = [
        dataclasses.replace(run, environment={"emulated": "compute quick", **more})
        for run, more in ((single, {}), (discarding, {"overruns": "3 of 9 gradients took longer"}))
    ]
    said = summary([entry(run) for run in emulated])
    assert said[-2].startswith("Emulated: compute quick. Processes, messages and computation are real")
    assert said[-1] == "k-sync:k=3: 3 of 9 gradients took longer."


def test_who_never_gets_there_is_told(single, discarding):
    missing = with_figures(run_of("async"), metrics=(0.1, 0.2), target=0.97)
    said = summary([entry(single), entry(discarding), entry(missing)])
    assert "async does not reach 0.97 in 2 steps; it ends at 0.2000." in said


def test_the_only_one_to_get_there_wins_alone(discarding):
    missing = with_figures(run_of("async"), metrics=(0.1, 0.2), target=0.97)
    assert summary([entry(missing), entry(discarding)])[0].endswith("after 3 s; no other strategy does.")


def test_where_nobody_gets_there_the_nearest_is_named():
    near, far = (
        with_figures(run_of(name), metrics=(0.1, metric), target=0.97)
        for name, metric in (("sync", 0.8), ("async", 0.2))
    )
    said = summary([entry(far), entry(near)])
    assert said[0] == "No strategy reaches 0.97; sync comes closest, with 0.8000."
    assert not any("does not reach" in line for line in said)


def test_without_a_target_the_quickest_is_named(single, discarding):
    first, second = (
        with_figures(run, metrics=METRICS, samples=n) for run, n in ((single, 20), (discarding, 10))
    )
    assert summary([entry(second), entry(first)])[0] == (
        "single is the fastest: 20 samples a second, 2.00 times as many as k-sync:k=3, the second best."
    )


def test_a_lead_within_the_spread_may_be_chance(waiting, discarding):
    one = [with_figures(waiting, metrics=METRICS, target=0.97, step_s=s) for s in (1.0, 1.5)]
    two = [with_figures(discarding, metrics=METRICS, target=0.97, step_s=s) for s in (1.1, 1.6)]
    said = summary([entry(*one), entry(*two)])
    assert "all-reduce may be ahead of k-sync:k=3 by chance: their repeats overlap." in said


def test_failures_are_told_last(single, discarding):
    said = summary(
        [entry(single), entry(discarding), Entry(name="async", error="rank 1 failed:\nx\nKeyError: 3")]
    )
    assert said[-1] == "async failed: rank 1 failed: KeyError: 3"


def test_what_a_step_of_the_others_would_take_is_told():
    entries = [entry(run_of(name, slow={3: 4.0}, steps=400)) for name in ("all-reduce", "async")]
    told = next(line for line in summary(entries) if line.startswith("Without it, a step of the others"))
    assert "async 2.5" in told


def test_one_run_alone_is_diagnosed(waiting):
    assert summary([entry(waiting)])[0].startswith("Rank 3 is the slowest to compute")


def test_all_may_have_failed():
    assert summary([Entry(name="sync", error="why")]) == ["sync failed: why"]
