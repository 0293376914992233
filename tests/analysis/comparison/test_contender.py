import pytest
from tasks import a_task, simulated

import paceline as pl
from paceline.analysis.comparison.contender import Contender
from paceline.errors import RunError, TaskError


def contender(train, **words):
    return Contender(name="it", train=train, words=words)


def run(one, stages=None):
    watch = None if stages is None else stages.append
    one.run(a_task(), simulated(2), seed=3, round=1, rounds=2, watch=watch)


def test_a_run_is_kept_and_told():
    def train(task, cluster, *, seed, progress, steps):
        return pl.train(task, "sync", cluster, seed=seed, progress=progress, steps=steps)

    one, stages = contender(train, steps=3), []
    run(one, stages)
    entry = one.entry()
    assert [made.seed for made in entry.runs] == [3]
    assert entry.error is None
    assert {(stage.name, stage.round, stage.rounds) for stage in stages} == {("it", 1, 2)}
    assert stages[0].progress is stages[0].run is stages[0].error is None
    assert stages[-1].run is entry.runs[0]


@pytest.mark.parametrize(
    ("error", "told"), [(RunError("no luck"), "no luck"), (ZeroDivisionError("oh"), "ZeroDivisionError: oh")]
)
def test_a_failure_is_noted_and_told(error, told):
    def train(task, cluster, **words):
        raise error

    one, stages = contender(train), []
    run(one, stages)
    assert one.entry().error == told
    assert one.entry().runs == ()
    assert stages[-1].error == told


def test_a_task_that_cannot_be_built_ends_it():
    def train(task, cluster, **words):
        raise TaskError("no model", "ValueError: no")

    with pytest.raises(TaskError):
        run(contender(train))


def test_without_a_watcher_nothing_is_shown():
    def train(task, cluster, *, progress, **words):
        assert progress is None
        return pl.train(task, "sync", cluster, steps=1)

    one = contender(train)
    run(one)
    assert len(one.entry().runs) == 1
