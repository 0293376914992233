"""Callbacks receive every record in order, in every world, and may end the run."""

import math
import time

import pytest
import torch
from conformance.cases import SPECS
from refusals import has, raised, refused
from tasks import WORLDS, a_task, samples, simulated
from torch import nn

import paceline as pl
from paceline.runs.run import Record
from paceline.trace import Kind


def distance(outputs, targets):
    return -float(nn.functional.mse_loss(outputs, targets))


def a_watched_task(**changes):
    return a_task(**({"test": samples(), "metric": distance} | changes))


class Watching:
    """A callback that records all its calls, and stops the run from a step on."""

    def __init__(self, stop_at=None, how=lambda: pl.STOP):
        self.steps, self.records, self.evaluated, self.ended = [], [], [], []
        self._stop_at, self._how = stop_at, how

    def on_step(self, record):
        self.steps.append(record.step)
        self.records.append(record)
        return self._how() if self._stop_at and record.step >= self._stop_at else None

    def on_evaluate(self, record, state):
        self.evaluated.append((record.step, record.metric, state))

    def on_end(self, run):
        self.ended.append(run)


class KeepingStates:
    wants_state = True

    def __init__(self):
        self.states = {}

    def on_evaluate(self, record, state):
        self.states[record.step] = state


def raising():
    raise pl.StopTraining


# Received records


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ["single", "all-reduce", "sync", "local-sgd:period=2", "fedavg"])
def test_every_record_comes_once_and_in_order(spec, world):
    seen = Watching()
    run = pl.train(a_watched_task(), spec, WORLDS[world](2), steps=6, evaluate_every=2, callbacks=[seen])
    assert seen.steps == [1, 2, 3, 4, 5, 6]
    assert [step for step, _, _ in seen.evaluated] == [2, 4, 6]
    assert [metric for _, metric, _ in seen.evaluated] == [run.history[n].metric for n in (1, 3, 5)]
    assert seen.ended == [run]
    assert all(isinstance(record, Record) and math.isfinite(record.loss) for record in seen.records)


def test_the_state_is_handed_over_to_those_that_ask_for_it():
    for world in WORLDS:
        kept, other = KeepingStates(), Watching()
        run = pl.train(
            a_watched_task(),
            "all-reduce",
            WORLDS[world](2),
            steps=4,
            evaluate_every=2,
            callbacks=[kept, other],
        )
        assert list(kept.states) == [2, 4]
        assert {state for _, _, state in other.evaluated} == {None}
        assert all(torch.equal(kept.states[4][name], tensor) for name, tensor in run.state.items())
        assert not torch.equal(kept.states[2]["0.weight"], run.state["0.weight"])


def test_workers_of_their_own_pace_show_the_reporters_records():
    seen = Watching()
    run = pl.train(a_watched_task(), "hogwild", simulated(2), steps=12, evaluate_every=4, callbacks=[seen])
    assert seen.steps == sorted(seen.steps)
    assert len(seen.steps) > 3
    assert seen.evaluated[-1][:2] == (12, run.metric)


def test_what_callbacks_take_is_off_the_clock():
    class Slow:
        def on_step(self, record):
            time.sleep(0.05)

    run = pl.train(a_task(), "single", pl.Local(workers=1), steps=4, callbacks=[Slow()])
    spans = [span for spans in run.trace.spans for span in spans.of(Kind.EVALUATE)]
    waited_s = sum(span["end_s"] - span["start_s"] for span in spans)
    assert waited_s >= 4 * 0.05
    assert run.seconds <= run.trace.seconds - waited_s


# Ending the run


@pytest.mark.parametrize("how", [lambda: pl.STOP, raising], ids=["returned", "raised"])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ["single", "all-reduce", "all-reduce:algorithm=shared", "map-reduce"])
def test_the_step_after_the_one_that_stopped_is_the_last(spec, world, how):
    run = pl.train(a_task(), spec, WORLDS[world](2), steps=50, callbacks=[Watching(3, how)])
    assert run.steps == 4


def stopped(spec, cluster):
    seen = Watching(5)
    run = pl.train(a_watched_task(), spec, cluster, steps=40, evaluate_every=4, callbacks=[seen])
    return run.steps


@pytest.mark.parametrize("spec", SPECS)
def test_every_strategy_can_be_stopped(spec):
    # Workers with local steps end at their next synchronization: at an evaluation.
    assert 5 <= stopped(spec, simulated(3)) <= 12


@pytest.mark.parametrize("spec", ["sync:servers=2", "fedavg", "decentralized", "diloco:period=3", "ssp"])
def test_processes_stop_where_a_simulation_does(spec):
    here = stopped(spec, pl.Local(workers=2, threads=1))
    assert here == stopped(spec, simulated(2)) or spec == "ssp"
    assert here <= 12


def test_workers_with_steps_of_their_own_end_when_they_next_meet():
    assert stopped("local-sgd:period=3", simulated(2)) == 8
    assert stopped("all-reduce", simulated(2)) == 6


# Errors


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ["all-reduce", "sync"])
def test_the_error_of_a_callback_is_the_runs(spec, world):
    def fail():
        raise LookupError("my own")

    seen = Watching(2, fail)
    with raised(LookupError, "my own"):
        pl.train(a_task(), spec, WORLDS[world](2), steps=5, callbacks=[seen])
    assert seen.ended == [None]


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (Watching(), refused("callbacks")),
        ([Watching], refused("callbacks")),
        ([print], refused("callbacks")),
        (
            [type("Asking", (), {"wants_state": True, "on_step": print})()],
            refused("callbacks", bound=has("on_evaluate")),
        ),
    ],
)
def test_what_is_no_callback_is_refused(given, refusal):
    with refusal:
        pl.train(a_task(), "single", simulated(1), steps=1, callbacks=given)


def test_callbacks_are_called_once_where_a_simulation_begins_anew():
    """Collectives are timed as a whole where they can be, and the run starts from the beginning where they cannot."""
    seen = Watching()
    pl.train(a_task(), "all-reduce:algorithm=ring", simulated(8), steps=3, callbacks=[seen])
    assert seen.steps == [1, 2, 3]
