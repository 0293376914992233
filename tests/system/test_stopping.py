"""Ctrl-C and SIGTERM end a run with checkpoints at its next step, after a last checkpoint."""

import os
import signal
import time

import pytest
import torch
from checkpointed_runs import STEPS, CheckpointedRun, the_task
from refusals import refused
from tasks import a_task, simulated

import paceline as pl
from paceline.checkpoints import Store
from paceline.system import stopping


class Signals:
    """Sends this process a signal after a step, as a user or a scheduler would."""

    def __init__(self, signum, step=5):
        self._signum, self._step = signum, step

    def on_step(self, record):
        if record.step >= self._step and not stopping.wanted():
            os.kill(os.getpid(), self._signum)


def stopped(folder, spec, signum=signal.SIGINT, error=KeyboardInterrupt, cluster=None, every=1000):
    options = {"checkpoint": folder, "checkpoint_every": every, "steps": 40}
    with pytest.raises(error) as caught:
        pl.train(a_task(), spec, cluster or simulated(2), callbacks=[Signals(signum)], **options)
    return caught.value


@pytest.mark.parametrize("spec", ["single", "all-reduce", "sync", "fedavg", "async"])
def test_ctrl_c_writes_a_checkpoint_of_the_next_step(spec, tmp_path):
    interrupt = stopped(tmp_path, spec)
    assert Store(tmp_path).newest().step == 6
    assert "to resume after step 6: resume=True (--resume)" in str(interrupt)


@pytest.mark.parametrize("spec", ["local-sgd:period=2", "decentralized"])
def test_workers_with_steps_of_their_own_stop_where_they_meet(spec, tmp_path):
    stopped(tmp_path, spec, every=4)
    assert Store(tmp_path).newest().step == 8


def test_workers_at_their_own_pace_stop_some_updates_later(tmp_path):
    stopped(tmp_path, "hogwild")
    assert 5 < Store(tmp_path).newest().step < 40


def test_sigterm_ends_the_process_as_a_shell_expects(tmp_path, caplog):
    ended = stopped(tmp_path, "all-reduce", signal.SIGTERM, SystemExit)
    assert ended.code == 128 + signal.SIGTERM
    assert "to resume after step 6" in caplog.text


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    plain = pl.train(a_task(), "all-reduce", simulated(2), steps=40)
    stopped(tmp_path, "all-reduce")
    resumed = pl.train(a_task(), "all-reduce", simulated(2), steps=40, checkpoint=tmp_path, resume="must")
    assert torch.equal(resumed.parameters, plain.parameters)
    assert resumed.history == plain.history


def test_the_handlers_of_signals_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stopped(tmp_path, "single")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert not stopping.wanted()


def test_processes_stop_too_and_go_on(tmp_path):
    cluster = pl.Local(workers=2, threads=1)
    stopped(tmp_path, "all-reduce", cluster=cluster)
    found = Store(tmp_path).newest().step
    assert 5 < found < 40
    resumed = pl.train(a_task(), "all-reduce", cluster, steps=40, checkpoint=tmp_path, resume="must")
    assert torch.equal(resumed.parameters, pl.train(a_task(), "all-reduce", cluster, steps=40).parameters)


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_a_driver_that_is_signalled_says_how_to_go_on(signum, code, tmp_path):
    with CheckpointedRun(tmp_path) as run:
        run.wait_for_checkpoint()
        run.send(signum)
        ended, said = run.end()
    assert f"to resume after step {Store(tmp_path).newest().step}" in said
    assert ended in (code, -signum)
    resumed = pl.train(
        the_task(),
        "all-reduce",
        pl.Local(workers=2, threads=1),
        steps=STEPS,
        checkpoint=tmp_path,
        resume="must",
    )
    assert resumed.steps == STEPS


# The time limit of a job


class Slow:
    """Waits in the driver until the time is up."""

    def on_step(self, record):
        if record.step == 3:
            while not stopping.wanted():
                time.sleep(0.01)


@pytest.mark.parametrize("spec", ["single", "all-reduce", "sync", "pipeline", "zero:stage=3"])
def test_a_time_limit_ends_a_run_with_a_checkpoint_and_the_model(spec, tmp_path):
    words = {"steps": 40, "checkpoint": tmp_path, "checkpoint_every": 1000}
    run = pl.train(a_task(), spec, simulated(2), max_seconds=0.01, callbacks=[Slow()], **words)
    newest = Store(tmp_path).newest()
    assert 0 < run.steps == newest.step < 40
    plain = pl.train(a_task(), spec, simulated(2), steps=run.steps)
    torch.testing.assert_close(run.parameters, plain.parameters, rtol=0, atol=0)
    assert len(run.trace.spans) == len(plain.trace.spans)
    resumed = pl.train(a_task(), spec, simulated(2), resume="must", max_seconds=3600, **words)
    assert torch.equal(resumed.parameters, pl.train(a_task(), spec, simulated(2), steps=40).parameters)


def test_processes_end_in_time_too(tmp_path):
    words = {"steps": 10**6, "checkpoint": tmp_path, "checkpoint_every": 10**6}
    run = pl.train(a_task(), "all-reduce", pl.Local(workers=2), max_seconds=0.5, **words)
    assert 0 < run.steps == Store(tmp_path).newest().step < 10**6
    assert run.state


def test_a_time_limit_needs_a_checkpoint():
    with refused("max_seconds", 1.0):
        pl.train(a_task(), "single", simulated(1), steps=1, max_seconds=1.0)
    with refused("max_seconds", 0):
        pl.train(a_task(), "single", simulated(1), steps=1, max_seconds=0, checkpoint="x")
