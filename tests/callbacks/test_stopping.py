import math
from types import SimpleNamespace

import pytest
import torch
from refusals import has, refused
from tasks import WORLDS, a_task, samples, simulated

import paceline as pl
from paceline.callbacks import STOP, EarlyStopping, KeepBest
from paceline.runs.run import Record

TASK = SimpleNamespace(metric="accuracy", better_way="higher")


def evaluations(callback, metrics):
    callback.on_begin(TASK)
    return [
        callback.on_evaluate(Record(step, 0.0, 0.0, metric, 0, 0), {"step": torch.tensor(step)})
        for step, metric in enumerate(metrics, start=1)
    ]


def stops_at(metrics, **settings):
    answers = evaluations(EarlyStopping(**settings), metrics)
    return answers.index(STOP) + 1 if STOP in answers else None


@pytest.mark.parametrize(
    ("metrics", "settings", "step"),
    [
        ([1, 2, 3, 4], {}, None),
        ([4, 3, 2, 1], {"patience": 2}, 3),
        ([1, 1, 1, 1], {"patience": 3}, 4),
        ([1, 0, 2, 0, 0], {"patience": 2}, 5),
        ([1, 1.05, 1.09, 1.2], {"patience": 2, "min_delta": 0.1}, 3),
        ([4, 3, 2, 1], {"patience": 1, "better": "lower"}, None),
        ([1, 2], {"patience": 1, "better": "lower"}, 2),
        ([1, math.nan, math.nan], {"patience": 2}, 3),
        ([math.nan, 1, 2], {"patience": 1}, None),
    ],
)
def test_a_run_is_stopped_after_so_many_evaluations_without_a_gain(metrics, settings, step):
    assert stops_at(metrics, **settings) == step


def test_it_begins_anew_with_every_run():
    callback = EarlyStopping(patience=1)
    assert evaluations(callback, [5, 1])[-1] is STOP
    assert evaluations(callback, [1, 2]) == [None, None]


@pytest.mark.parametrize(("better", "best"), [(None, 2), ("higher", 2), ("lower", 3)])
def test_the_best_state_is_kept_and_the_earlier_of_equals(better, best):
    callback = KeepBest(better=better)
    evaluations(callback, [2, 5, 1, 5, 3])
    assert (callback.step, callback.state["step"].item()) == (best, best)


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (lambda: EarlyStopping(patience=0), refused("patience", 0, bound=has(1))),
        (lambda: EarlyStopping(min_delta=-1), refused("min_delta", -1, bound=has(0))),
        (lambda: EarlyStopping(better="more"), refused("better", bound=has("higher", "lower"))),
        (lambda: KeepBest(better=1), refused("better", bound=has("higher", "lower"))),
    ],
)
def test_bad_settings_are_refused(make, refusal):
    with refusal:
        make()


@pytest.mark.parametrize("callback", [EarlyStopping(), KeepBest()])
def test_they_need_a_metric(callback):
    with refused("callbacks", None, bound=has(type(callback).__name__)):
        pl.train(a_task(), "single", simulated(1), steps=1, callbacks=[callback])


def rising_and_falling(outputs, targets):
    """A metric that is best when the mean of the outputs is 0.3, which the run passes."""
    return -abs(float(outputs.mean()) - 0.3)


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_ends_early_and_keeps_its_best_model(world):
    task = a_task(
        test=samples(),
        metric=rising_and_falling,
        loss=lambda outputs, targets: -outputs.mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.02),
    )
    run = pl.train(
        task,
        "all-reduce",
        WORLDS[world](2),
        steps=60,
        evaluate_every=1,
        callbacks=[EarlyStopping(patience=2), KeepBest()],
    )
    metrics = [record.metric for record in run.history]
    best = max(range(len(metrics)), key=metrics.__getitem__)
    assert run.steps == best + 1 + 2 + 1 < 60  # two evaluations without an improvement, and one more
    assert run.best_metric == metrics[best]
    again = pl.train(task, "all-reduce", simulated(2), steps=best + 1)
    assert all(torch.equal(run.best_state[name], tensor) for name, tensor in again.state.items())
