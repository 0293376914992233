"""After any process is killed at any time, a run with checkpoints can resume, and ends as if undisturbed."""

import os
import random

import pytest
import torch
from checkpointed_runs import STEPS, CheckpointedRun, the_task
from deaths import BATCH, deadly, numbered_samples
from tasks import WORLDS, a_task

import paceline as pl
from paceline.checkpoints import Store
from paceline.errors import PeerLost

WHOM = ("the driver", "a rank", "everything")
SEEDS = int(os.environ.get("PACELINE_KILL_SEEDS", "1"))
"""Each seed is twenty kills, five in each of four tests. Use ten seeds if the format of checkpoints has changed."""


def check_goes_on(folder, whom, moments, seed):
    """Kill a run repeatedly at random moments. Then let it run to its end."""
    chance, newest = random.Random(seed), 0
    for _ in range(moments):
        with CheckpointedRun(folder) as run:
            run.wait_for_checkpoint(after=newest)
            run.pause(chance.uniform(0.0, 0.05))
            if run.has_ended:
                break
            run.kill(chance.choice(whom))
            run.end()
            found = Store(folder).newest()
            assert found.step >= newest, "a finished checkpoint is never lost"
            newest = found.step
    plain = pl.train(the_task(), "all-reduce", WORLDS["local"](2), steps=STEPS)
    resumed = pl.train(
        the_task(),
        "all-reduce",
        WORLDS["local"](2),
        steps=STEPS,
        checkpoint=folder,
        checkpoint_every=50,
        resume="must",
    )
    assert torch.equal(resumed.parameters, plain.parameters)
    assert [record.loss for record in resumed.history] == [record.loss for record in plain.history]


@pytest.mark.parametrize("step", [3, 8, 13])
def test_a_run_whose_rank_was_killed_goes_on(step, tmp_path):
    workers, steps = 2, 16
    given = {"steps": steps, "checkpoint": tmp_path, "checkpoint_every": 2, "resume": True}
    with pytest.raises(PeerLost) as caught:
        pl.train(a_deadly_task({1: step}, workers), "all-reduce", WORLDS["local"](workers), **given)
    newest = Store(tmp_path).newest()
    found = 0 if newest is None else newest.step
    assert found <= step
    assert any(f"after step {found}" in note or not found for note in caught.value.__notes__)
    resumed = pl.train(a_deadly_task({}, workers), "all-reduce", WORLDS["local"](workers), **given)
    plain = pl.train(a_deadly_task({}, workers), "all-reduce", WORLDS["simulated"](workers), steps=steps)
    assert torch.equal(resumed.parameters, plain.parameters)


def a_deadly_task(deaths, workers):
    return a_task(data=numbered_samples(), loss=deadly(deaths, workers), batch_size=BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("whom", WHOM)
def test_a_run_goes_on_whoever_was_killed(whom, tmp_path):
    check_goes_on(tmp_path, [whom], 3, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 4 * SEEDS))]
)
def test_a_run_goes_on_after_each_of_five_kills_at_random_moments(seed, tmp_path):
    check_goes_on(tmp_path, WHOM, 5, seed=seed)
