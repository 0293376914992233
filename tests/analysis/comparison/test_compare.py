import pytest
import torch
from refusals import has, refused, unknown
from tasks import a_task, numbers, samples, simulated

import paceline as pl
from paceline.analysis.comparison.compare import EVALUATIONS
from paceline.analysis.comparison.saved import load_entries


def closeness(outputs, targets):
    return -float((outputs - targets).abs().mean())


def aimed(**changes):
    return a_task(**({"test": samples(), "metric": closeness, "target": -10.0} | changes))


def by_name(comparison):
    return {entry.name: entry for entry in comparison.entries}


def test_every_strategy_starts_from_the_same_seed_and_start():
    found = by_name(pl.compare(aimed(), "all-reduce,sync", simulated(4), steps=6, seed=5))
    assert list(found) == ["single", "all-reduce", "sync"]
    (alone,), others = found["single"].runs, [found[name].runs[0] for name in ("all-reduce", "sync")]
    assert {run.seed for entry in found.values() for run in entry.runs} == {5}
    for run in others:
        torch.testing.assert_close(run.parameters, alone.parameters, rtol=0, atol=1e-12)


def test_rounds_are_complete_before_the_next_begins_and_have_a_seed_each():
    order = []

    def watch(stage):
        if stage.run is not None:
            order.append((stage.name, stage.round, stage.run.seed))

    found = pl.compare(aimed(), ["sync", "async"], simulated(2), steps=3, repeat=2, seed=7, progress=watch)
    names = ["single", "sync", "async"]
    assert order == [(name, 1, 7) for name in names] + [(name, 2, 8) for name in names]
    assert all(len(entry.runs) == 2 for entry in found.entries)


def test_an_epoch_is_as_many_samples_for_every_strategy():
    found = by_name(pl.compare(a_task(), "sync,k-sync:k=3,async,hogwild", simulated(4), epochs=4))
    seen = {name: entry.runs[0].history[-1].samples for name, entry in found.items()}
    assert set(seen.values()) == {96}
    assert found["async"].runs[0].steps == 4 * found["sync"].runs[0].steps


def test_steps_are_the_same_for_every_strategy():
    found = pl.compare(a_task(), "sync,async", simulated(4), steps=7)
    assert {entry.runs[0].steps for entry in found.entries} == {7}


def test_single_runs_on_one_worker_and_may_be_left_out():
    found = by_name(pl.compare(a_task(), "sync", simulated(4), steps=2))
    assert len(found["single"].runs[0].trace.spans) == 1
    assert list(by_name(pl.compare(a_task(), "sync", simulated(4), steps=2, baseline=False))) == ["sync"]
    assert list(by_name(pl.compare(a_task(), "sync,single", simulated(4), steps=2))) == ["sync", "single"]


def test_the_metric_is_looked_at_often():
    found = pl.compare(aimed(), "sync", simulated(2), steps=2 * EVALUATIONS, baseline=False)
    assert sum(r.metric is not None for r in found.entries[0].runs[0].history) == EVALUATIONS


def test_a_target_replaces_that_of_the_task():
    found = pl.compare(aimed(), "sync", simulated(2), steps=3, target=5.0)
    assert {row.target for row in found.table} == {5.0}
    assert found.winner is None


def test_a_simulation_without_mathematics_has_no_target():
    found = pl.compare(aimed(), "sync,async", simulated(4, math="none", slow={3: 4.0}), steps=20)
    assert found.table[0].target is None
    assert found.winner == "async"


def test_four_simulated_workers_are_four_times_as_quick_as_one():
    """One worker takes as long for the gradient of the whole batch as for its four slices in sequence."""
    found = pl.compare(a_task(), "all-reduce", simulated(4, link=pl.Link.ideal()), steps=10)
    assert [row.speed_up for row in found.table] == pytest.approx([1.0, 4.0])
    timed_here = pl.Simulated(workers=2, link=pl.Link.ideal())
    assert pl.compare(a_task(), "all-reduce", timed_here, steps=2).table[0].speed_up == 1.0


def test_a_strategy_that_fails_does_not_end_the_comparison():
    found = by_name(pl.compare(a_task(), "all-reduce:algorithm=native,sync", simulated(2), steps=2, repeat=2))
    assert "algorithm must not be native in a simulation" in found["all-reduce:algorithm=native"].error
    assert len(found["sync"].runs) == 2


def test_a_loss_that_is_not_finite_is_told_in_its_row():
    data = (numbers(24, 4), numbers(24, 2) * torch.inf)
    found = pl.compare(a_task(data=data), "sync", simulated(2), steps=2)
    assert [entry.name for entry in found.failed] == ["single", "sync"]
    assert all("the loss is" in entry.error for entry in found.failed)
    assert found.winner is None


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ({"strategies": []}, refused("strategies", [])),
        (
            {"strategies": "all-reduse"},
            unknown("strategy", "all-reduse", nearest="all-reduce"),
        ),
        ({"strategies": "sync,k-sync:k=9"}, refused("k", 9, bound=has(1, 2))),
        ({"repeat": 0}, refused("repeat", 0, bound=has(1))),
        ({"repeat": True}, refused("repeat", True)),
        ({"seed": -1}, refused("seed")),
        ({"seed": 2**32 - 1, "repeat": 2}, refused("seed")),
        ({"steps": 0}, refused("steps", 0)),
        ({"steps": 2, "epochs": 1}, refused("steps", 2)),
        ({"evaluate_every": 0}, refused("evaluate_every", 0)),
        ({"target": float("nan")}, refused("target", has("nan"))),
        ({"against": "dpd"}, unknown("against", "dpd")),
        ({"against": "ddp"}, refused("against")),
        ({"cluster": 3}, refused("cluster", 3)),
        ({"task": 3}, refused("task", 3, bound=has("pl.Task"))),
    ],
)
def test_what_cannot_be_right_is_refused_before_any_run(words, refusal):
    def watch(stage):
        raise AssertionError("a run has begun")

    given = {"task": aimed(), "strategies": "sync", "cluster": simulated(2), "progress": watch} | words
    with refusal:
        pl.compare(given.pop("task"), given.pop("strategies"), given.pop("cluster"), **given)


def test_a_target_without_a_metric_is_refused():
    with refused("metric", None):
        pl.compare(a_task(), "sync", simulated(2), target=0.5)


def test_a_target_without_mathematics_is_refused():
    with refused("target", 0.5):
        pl.compare(aimed(), "sync", simulated(2, math="none"), target=0.5)


def test_real_workers_are_compared_with_each_other_and_with_ddp():
    found = pl.compare(aimed(), "all-reduce,k-sync:k=1", pl.Local(workers=2), steps=4, against="ddp")
    assert [entry.error for entry in found.entries] == [None] * 4
    assert [row.name for row in found.table] == ["single", "all-reduce", "k-sync:k=1", "ddp"]
    assert all(row.speed_up for row in found.table)


# One measurement, and results that are saved when they are ready


@pytest.mark.parametrize("strategies", ["sync,all-reduce", "all-reduce,pipeline:stages=2"])
def test_a_simulation_without_compute_measures_gradients_once(strategies, monkeypatch):
    measured = []
    medians = iter([1.0, 4.0, 0.0])
    monkeypatch.setattr(
        "paceline.clusters.simulated.gradient_timer.median_s", lambda _: measured.append(1) or next(medians)
    )
    cluster = pl.Simulated(workers=4, link=pl.Link.ideal())
    found = by_name(pl.compare(a_task(), strategies, cluster, steps=2))
    assert len(measured) == 3, "one worker's slice, the whole batch, and an update"
    assert all(entry.error is None for entry in found.values())
    bound = found["single"].runs[0].seconds / min(entry.runs[0].seconds for entry in found.values())
    assert bound <= 4.0, "there are four workers"


def test_each_run_is_saved_when_it_ends_and_a_resumed_comparison_makes_the_others(tmp_path):
    def interrupt(stage):
        if stage.name == "sync" and stage.run is None and stage.progress is None:
            raise KeyboardInterrupt

    words = {"steps": 3, "out": tmp_path / "out"}
    with pytest.raises(KeyboardInterrupt):
        pl.compare(aimed(), "all-reduce,sync", simulated(2), progress=interrupt, **words)
    assert [entry.name for entry in load_entries([tmp_path / "out"])] == ["single", "all-reduce"]
    stages = []
    found = pl.compare(aimed(), "all-reduce,sync", simulated(2), progress=stages.append, resume=True, **words)
    assert [stage.name for stage in stages if stage.progress is None and stage.run is None] == ["sync"]
    assert [stage.name for stage in stages if stage.run is not None] == ["single", "all-reduce", "sync"]
    assert [(entry.name, len(entry.runs)) for entry in load_entries([tmp_path / "out"])] == [
        (entry.name, 1) for entry in found.entries
    ]


def test_a_resumed_comparison_adds_rounds_and_repeats_what_failed(tmp_path):
    words = {"steps": 3, "out": tmp_path / "out"}
    pl.compare(a_task(), "sync,sync:servers=9", simulated(2), baseline=False, **words)
    found = by_name(
        pl.compare(
            a_task(), "sync,sync:servers=9", simulated(2), baseline=False, repeat=2, resume=True, **words
        )
    )
    assert [run.seed for run in found["sync"].runs] == [0, 1]


@pytest.mark.parametrize("change", [{"steps": 4}, {"seed": 1}, {"cluster": simulated(3)}], ids=str)
def test_another_comparison_is_not_resumed(change, tmp_path):
    words = {"steps": 3, "out": tmp_path, "cluster": simulated(2), "baseline": False}
    pl.compare(a_task(), "sync", **words)
    with refused("resume"):
        pl.compare(a_task(), "sync", resume=True, **(words | change))


def test_resume_needs_the_folder():
    with refused("resume", True):
        pl.compare(a_task(), "sync", simulated(2), steps=1, resume=True)


def test_a_winner_that_never_communicated_is_said_to_be_no_match():
    found = pl.compare(a_task(), "local-sgd:period=100,local-sgd:period=2,hogwild", simulated(3), steps=4)
    noted = [each for each in found.summary if "never communicated" in each]
    assert len(noted) == 1
    assert noted[0].startswith("local-sgd:period=100 ")
