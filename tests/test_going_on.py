"""What is asked about checkpoints is checked at once, and says what to do."""

import dataclasses
import logging
import os
import re

import pytest
import torch
from tasks import a_task, samples, simulated

import paceline as pl
from paceline.errors import ConfigurationError, PacelineError, RunError


def train(folder, task=None, strategy="all-reduce", cluster=None, steps=4, **options):
    given = {"checkpoint": folder, "checkpoint_every": 2, **options}
    return pl.train(task or a_task(), strategy, cluster or simulated(2), steps=steps, **given)


def steps_in(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def test_the_last_two_checkpoints_stay(tmp_path, on_a_quick_disk):
    train(tmp_path, steps=7)
    assert steps_in(tmp_path) == ["step-00000006", "step-00000007"]


def test_nothing_else_is_left_in_the_folder(tmp_path, on_a_quick_disk):
    train(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["step-00000002", "step-00000004"]


def test_the_best_checkpoint_stays_if_asked(tmp_path, on_a_quick_disk):
    values = iter([1.0, 5.0, 2.0, 3.0, 4.0])
    task = a_task(test=samples(4), metric=lambda outputs, targets: next(values))
    train(tmp_path, task, "single", simulated(1), steps=10, evaluate_every=2, keep=1, keep_best=True)
    assert steps_in(tmp_path) == ["step-00000004", "step-00000010"]


def test_a_run_that_had_ended_is_there_at_once(tmp_path):
    first = train(tmp_path)
    again = train(tmp_path, resume=True)
    assert torch.equal(again.parameters, first.parameters)
    assert [r.step for r in again.history] == [1, 2, 3, 4]


def test_a_run_that_had_reached_its_target_is_there_at_once(tmp_path):
    task = a_task(test=samples(4), metric=lambda outputs, targets: 1.0, target=0.5)
    given = {"steps": 20, "evaluate_every": 4, "stop_at_target": True}
    first = train(tmp_path, task, **given)
    again = train(tmp_path, task, resume="must", **given)
    assert first.steps == again.steps == 5
    assert torch.equal(again.parameters, first.parameters)


@pytest.mark.parametrize(
    "spec", ["local-sgd:period=3", "decentralized", "decentralized:mode=async", "hogwild", "fedavg"]
)
def test_a_run_that_had_ended_has_the_same_model_again(spec, tmp_path):
    first = train(tmp_path, strategy=spec)
    again = train(tmp_path, strategy=spec, resume="must")
    assert torch.equal(again.parameters, first.parameters)
    assert again.steps == first.steps == 4


def test_without_a_checkpoint_a_run_begins_anew_and_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="paceline"):
        run = train(tmp_path, resume=True)
    assert run.steps == 4
    assert f"no checkpoint in {tmp_path}: the run begins anew" in caplog.text


def test_must_refuses_where_there_is_no_checkpoint(tmp_path):
    with pytest.raises(ConfigurationError, match="checkpoint must hold a checkpoint"):
        train(tmp_path, resume="must")


def test_a_folder_with_checkpoints_is_not_overwritten(tmp_path):
    train(tmp_path)
    with pytest.raises(ConfigurationError, match=r"holds a run of all-reduce up to step 4.*--resume"):
        train(tmp_path)


DIFFERENT = {
    "seed": lambda: {"seed": 3},
    "batch size": lambda: {"task": a_task(batch_size=4)},
    "optimizer": lambda: {"task": a_task(optimizer=lambda params: torch.optim.Adam(params, lr=0.1))},
    "model": lambda: {"task": a_task(model=lambda: torch.nn.Linear(4, 2).double())},
    "loss": lambda: {"task": a_task(loss=torch.nn.functional.l1_loss)},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_folder_of_another_run_is_refused_with_what_differs(what, tmp_path):
    train(tmp_path)
    with pytest.raises(ConfigurationError, match=rf"must be of this run.*all-reduce up to step 4.*{what} "):
        train(tmp_path, resume=True, **DIFFERENT[what]())


def test_fewer_steps_than_were_taken_are_refused(tmp_path):
    train(tmp_path)
    with pytest.raises(ConfigurationError, match="steps must be at least 4"):
        train(tmp_path, resume=True, steps=3)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_folder_is_refused_at_once(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="checkpoint must be a folder that can be written"):
        train(tmp_path / "x")


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="checkpoint must be a folder that can be written"):
        train(tmp_path / "file" / "x")


WRONG = {
    "checkpoint_every": [0, -1, "soon", "0s", True, 2.5],
    "resume": ["newest", 3, None],
    "keep": [0, "2"],
}


@pytest.mark.parametrize(("argument", "value"), [(a, v) for a, values in WRONG.items() for v in values])
def test_a_wrong_value_is_refused(argument, value, tmp_path):
    with pytest.raises(ConfigurationError, match=f"^{argument} "):
        train(tmp_path, **{argument: value})


@pytest.mark.parametrize(
    "option", [{"checkpoint_every": 3}, {"resume": True}, {"keep": 3}, {"keep_best": True}]
)
def test_words_about_checkpoints_need_a_folder(option):
    with pytest.raises(ConfigurationError, match="needs checkpoint"):
        pl.train(a_task(), "single", simulated(1), steps=1, **option)


def test_the_best_needs_a_metric(tmp_path):
    with pytest.raises(ConfigurationError, match="keep_best needs a metric"):
        train(tmp_path, keep_best=True)


def test_a_simulation_without_mathematics_has_nothing_to_keep(tmp_path):
    with pytest.raises(ConfigurationError, match="checkpoint needs mathematics"):
        train(tmp_path, cluster=simulated(2, math="none"))


def test_checkpoints_by_time_change_no_bit(tmp_path):
    plain = pl.train(a_task(), "all-reduce", simulated(2), steps=6)
    kept = train(tmp_path, steps=6, checkpoint_every="1us")
    assert torch.equal(kept.parameters, plain.parameters)
    assert "step-00000006" in steps_in(tmp_path)


@pytest.mark.parametrize(
    ("spec", "steps"),
    [
        ("local-sgd:period=3", 8),
        ("decentralized", 8),
        ("hogwild", 60),
        ("decentralized:mode=async", 60),
        ("async", 8),
    ],
)
def test_checkpoints_by_time_are_written_by_every_kind_of_strategy(spec, steps, tmp_path, on_a_quick_disk):
    run = train(tmp_path, strategy=spec, steps=steps, checkpoint_every="1us", keep=100)
    assert run.steps == steps
    assert len(steps_in(tmp_path)) > 1


def test_an_error_says_how_to_go_on(tmp_path, on_a_quick_disk):
    calls = iter(range(100))

    def loss(outputs, targets):
        if next(calls) == 5:
            raise RuntimeError("broken")
        return torch.nn.functional.mse_loss(outputs, targets)

    with pytest.raises(RunError) as caught:
        train(tmp_path, a_task(loss=loss), "single", simulated(1), steps=20)
    assert any("to go on after step 4: resume=True" in note for note in caught.value.__notes__)


def test_the_manifest_says_what_the_run_is(tmp_path):
    from paceline.checkpoints import Store

    train(tmp_path, strategy="sync:servers=2")
    facts = Store(tmp_path).newest().facts
    assert facts["strategy"] == "sync:servers=2"
    assert facts["roles"] == ["worker", "worker", "server", "server"]
    assert facts["task"]["batch size"] == "8"


def test_a_rank_whose_parameters_the_reporter_has_writes_none(tmp_path):
    from paceline.checkpoints import Store

    task = dataclasses.replace(a_task(), optimizer=lambda params: torch.optim.Adam(params, lr=0.1))
    train(tmp_path, task, "all-reduce:algorithm=ring")
    found = Store(tmp_path).newest()
    kinds = [{name.split("/")[0] for name in found.shard(rank).tensors} for rank in range(2)]
    assert kinds[0] >= {"parameters", "optimizer"}
    assert kinds[1] == {"history"}


class Removes:
    """A callback that takes the folder away after a step."""

    def __init__(self, folder):
        self._folder = folder

    def on_step(self, record):
        if record.step == 5:
            self._folder.rename(self._folder.with_name("elsewhere"))


def test_a_folder_that_vanishes_does_not_end_the_training(tmp_path, caplog, on_a_quick_disk):
    folder = tmp_path / "x"
    run = train(folder, steps=9, callbacks=[Removes(folder)])
    assert run.steps == 9
    assert re.search("no new checkpoint since step [24]", caplog.text)


def damage(folder):
    """Change one bit of the newest checkpoint."""
    file = folder / steps_in(folder)[-1] / "rank-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_offered(tmp_path, on_a_quick_disk):
    train(tmp_path)
    damage(tmp_path)
    with pytest.raises(PacelineError, match=r"rank-00000\.safetensors.*step 2, before it, is whole"):
        train(tmp_path, resume=True, steps=6)


def test_the_newest_good_checkpoint_is_taken_if_asked(tmp_path, on_a_quick_disk):
    plain = train(tmp_path / "plain", steps=6)
    train(tmp_path / "x")
    damage(tmp_path / "x")
    resumed = train(tmp_path / "x", resume="newest-good", steps=6)
    assert torch.equal(resumed.parameters, plain.parameters)
