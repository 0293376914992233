"""Checkpoint options are validated immediately, and errors name the remedy."""

import dataclasses
import logging
import os
import re

import pytest
import torch
from refusals import has, raised, refused
from tasks import WORLDS, a_task, samples, simulated

import paceline as pl
from paceline.checkpoints import Store
from paceline.checkpoints.shard import write_shard
from paceline.errors import DamagedError, RunError


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
    assert f"no checkpoint in {tmp_path}: the run starts from the beginning" in caplog.text


def test_must_refuses_where_there_is_no_checkpoint(tmp_path):
    with refused("checkpoint", str(tmp_path)):
        train(tmp_path, resume="must")


def test_a_folder_with_checkpoints_is_not_overwritten(tmp_path):
    train(tmp_path)
    with refused("checkpoint", has("all-reduce", 4), remedy=has("--resume")):
        train(tmp_path)


def a_perceptron(activation):
    return lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), activation, torch.nn.Linear(8, 2)).double()


class Functional(torch.nn.Module):
    """A model with an activation that is not a module."""

    def __init__(self, activation):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
        self.activation = activation

    def forward(self, inputs):
        return self.out(self.activation(self.hidden(inputs)))


def two_groups(lr):
    def make(params):
        params = list(params)
        return torch.optim.SGD([{"params": params[:1]}, {"params": params[1:], "lr": lr}], lr=0.1)

    return make


def step_lr(gamma):
    return lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100, gamma=gamma)


def other_values():
    inputs, targets = samples()
    return inputs + 1, targets


def a_loss(factor):
    return lambda outputs, targets: factor * torch.nn.functional.mse_loss(outputs, targets)


DIFFERENT = {
    "seed": ({}, {"seed": 3}),
    "batch size": ({}, {"batch_size": 4}),
    "optimizer": ({}, {"optimizer": lambda params: torch.optim.Adam(params, lr=0.1)}),
    "parameter groups": ({"optimizer": two_groups(0.2)}, {"optimizer": two_groups(0.3)}),
    "model": ({}, {"model": lambda: torch.nn.Linear(4, 2).double()}),
    "loss": ({}, {"loss": torch.nn.functional.l1_loss}),
    "clip_norm": ({"clip_norm": 1.0}, {"clip_norm": 2.0}),
    "schedule": ({"schedule": step_lr(0.5)}, {"schedule": step_lr(0.6)}),
    "schedule_every": ({"schedule": step_lr(0.5)}, {"schedule": step_lr(0.5), "schedule_every": 2}),
    "shuffle": ({}, {"shuffle": False}),
    "sampler": ({"sampler": [1.0] * 24}, {"sampler": [*[1.0] * 23, 2.0]}),
    "drop_last": ({}, {"drop_last": True}),
    "ema": ({"ema": 0.9}, {"ema": 0.8}),
    "layer 1": ({"model": a_perceptron(torch.nn.Tanh())}, {"model": a_perceptron(torch.nn.ReLU())}),
    "layer 1 ": (
        {"model": a_perceptron(torch.nn.Dropout(0.1))},
        {"model": a_perceptron(torch.nn.Dropout(0.2))},
    ),
    "model, loss or step": (
        {"model": lambda: Functional(torch.tanh).double()},
        {"model": lambda: Functional(torch.relu).double()},
    ),
    "computation of model, loss or step": ({"loss": a_loss(1.0)}, {"loss": a_loss(1.01)}),
    "data": ({}, {"data": other_values()}),
    "number of samples": ({}, {"data": samples(20)}),
}


def train_both(folder, before, now, **options):
    seed = {"seed": now.get("seed", 0)}
    train(folder, a_task(**before), **options)
    return train(
        folder, a_task(**{k: v for k, v in now.items() if k != "seed"}), resume=True, **seed, **options
    )


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_folder_of_another_run_is_refused_with_what_differs(what, tmp_path):
    with refused("checkpoint", has("all-reduce", 4), remedy=has(what.strip())):
        train_both(tmp_path, *DIFFERENT[what])


@pytest.mark.parametrize(
    ("what", "spec"),
    [
        ("data", "all-reduce"),
        ("data", "pipeline:stages=2"),
        ("data", "sync"),
        ("model, loss or step", "sync"),
    ],
)
def test_worker_processes_refuse_another_task_before_the_training(what, spec, tmp_path):
    before, now = DIFFERENT[what]
    with refused("checkpoint", remedy=has(what)) as caught:
        train_both(tmp_path, before, now, cluster=WORLDS["local"](2), strategy=spec)
    assert not getattr(caught.value, "__notes__", [])
    assert steps_in(tmp_path)[-1] == "step-00000004"


class Drawn(torch.utils.data.Dataset):
    """Samples with noise from their own generator: different values each time, but the same targets."""

    def __init__(self, offset=0.0):
        self.generator = torch.Generator()
        self.generator.seed()
        self.offset = offset

    def __len__(self):
        return 24

    def __getitem__(self, index):
        noise = torch.randn(4, generator=self.generator, dtype=torch.float64)
        return noise, torch.full((2,), index + self.offset, dtype=torch.float64)


def test_samples_that_are_drawn_at_random_are_no_other_samples(tmp_path):
    run = train_both(tmp_path, {"data": Drawn()}, {"data": Drawn()}, steps=4)
    assert run.steps == 4


def test_parts_of_random_samples_that_are_always_the_same_are_compared(tmp_path):
    with refused("checkpoint", remedy=has(1)):
        train_both(tmp_path, {"data": Drawn()}, {"data": Drawn(offset=1.0)})


def test_a_model_that_begins_at_random_weights_goes_on(tmp_path):
    one, other = a_perceptron(torch.nn.Tanh())(), a_perceptron(torch.nn.Tanh())()
    assert not torch.equal(one[0].weight, other[0].weight)
    plain = train(tmp_path / "plain", a_task(model=one), steps=4)
    run = train_both(tmp_path / "x", {"model": one}, {"model": other}, steps=4)
    assert torch.equal(run.parameters, plain.parameters)


def make_older(checkpoint):
    """Write the checkpoint like an older version, with fewer facts."""
    first = checkpoint.shard(0)
    written = write_shard(checkpoint.folder, dataclasses.replace(first, facts=without(first.facts, "trial")))
    new = (
        "parameter groups",
        "schedule",
        "clip_norm",
        "shuffle",
        "sampler",
        "drop_last",
        "ema",
        "step",
        "turns",
    )
    facts = without(checkpoint.facts, "layers", "schedule_every")
    facts["task"] = without(facts["task"], "autocast", *new)
    older = dataclasses.replace(checkpoint, facts=facts, shards={**checkpoint.shards, 0: written})
    older.write_manifest()


def without(facts, *names):
    assert {*names} <= {*facts}
    return {name: value for name, value in facts.items() if name not in names}


def test_a_checkpoint_of_an_older_version_goes_on_though_it_has_fewer_facts(tmp_path):
    train(tmp_path, a_task(model=a_perceptron(torch.nn.Tanh())))
    make_older(Store(tmp_path).newest())
    other = a_task(clip_norm=100.0, model=a_perceptron(torch.nn.ReLU()), data=other_values())
    assert train(tmp_path, other, resume="must", steps=6).steps == 6


def test_the_trial_of_a_task_changes_nothing_of_it(tmp_path):
    calls = []

    def loss(outputs, targets):
        calls.append(len(targets))
        return torch.nn.functional.mse_loss(outputs, targets)

    plain = pl.train(a_task(loss=loss), "single", simulated(1), steps=4)
    plainly, calls[:] = [*calls], []
    kept = train(tmp_path, a_task(loss=loss), "single", simulated(1), steps=4)
    assert calls == plainly
    assert torch.equal(kept.parameters, plain.parameters)


def test_fewer_steps_than_were_taken_are_refused(tmp_path):
    train(tmp_path)
    with refused("steps", 3, bound=has(4)):
        train(tmp_path, resume=True, steps=3)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_folder_is_refused_at_once(tmp_path):
    tmp_path.chmod(0o500)
    with refused("checkpoint"):
        train(tmp_path / "x")


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path):
    (tmp_path / "file").touch()
    with refused("checkpoint"):
        train(tmp_path / "file" / "x")


WRONG = {
    "checkpoint_every": [0, -1, "soon", "0s", True, 2.5],
    "resume": ["newest", 3, None],
    "keep": [0, "2"],
}


@pytest.mark.parametrize(("argument", "value"), [(a, v) for a, values in WRONG.items() for v in values])
def test_a_wrong_value_is_refused(argument, value, tmp_path):
    with refused(argument, value):
        train(tmp_path, **{argument: value})


@pytest.mark.parametrize(
    "option", [{"checkpoint_every": 3}, {"resume": True}, {"keep": 3}, {"keep_best": True}]
)
def test_words_about_checkpoints_need_a_folder(option):
    with refused(*next(iter(option.items())), bound=has("checkpoint")):
        pl.train(a_task(), "single", simulated(1), steps=1, **option)


def test_the_best_needs_a_metric(tmp_path):
    with refused("keep_best", True):
        train(tmp_path, keep_best=True)


def test_a_simulation_without_mathematics_has_nothing_to_keep(tmp_path):
    with refused("checkpoint", "none"):
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
    assert any("to resume after step 4: resume=True" in note for note in caught.value.__notes__)


def test_the_manifest_says_what_the_run_is(tmp_path):
    train(tmp_path, strategy="sync:servers=2")
    facts = Store(tmp_path).newest().facts
    assert facts["strategy"] == "sync:servers=2"
    assert facts["roles"] == ["worker", "worker", "server", "server"]
    assert facts["task"]["batch size"] == "8"


def test_a_rank_whose_parameters_the_reporter_has_writes_none(tmp_path):
    task = dataclasses.replace(a_task(), optimizer=lambda params: torch.optim.Adam(params, lr=0.1))
    train(tmp_path, task, "all-reduce:algorithm=ring")
    found = Store(tmp_path).newest()
    kinds = [{name.split("/")[0] for name in found.shard(rank).tensors} for rank in range(2)]
    assert kinds[0] >= {"parameters", "optimizer"}
    assert kinds[1] == {"history"}


class Removes:
    """A callback that removes the folder after a step."""

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
    with raised(DamagedError, file="rank-00000.safetensors", remedy=has(2)):
        train(tmp_path, resume=True, steps=6)


def test_the_newest_good_checkpoint_is_taken_if_asked(tmp_path, on_a_quick_disk):
    plain = train(tmp_path / "plain", steps=6)
    train(tmp_path / "x")
    damage(tmp_path / "x")
    resumed = train(tmp_path / "x", resume="newest-good", steps=6)
    assert torch.equal(resumed.parameters, plain.parameters)


@pytest.mark.parametrize("resume", [True, "must"])
def test_a_newest_checkpoint_that_lost_its_manifest_is_refused(resume, tmp_path, on_a_quick_disk):
    train(tmp_path)
    (tmp_path / "step-00000004" / "manifest.json").unlink()
    with raised(DamagedError, file="manifest.json", folder=has("step-00000004"), reason=has(2)):
        train(tmp_path, resume=resume, steps=6)


def test_a_damaged_checkpoint_that_is_passed_over_is_named(tmp_path, caplog, on_a_quick_disk):
    train(tmp_path)
    (tmp_path / "step-00000004" / "manifest.json").unlink()
    with caplog.at_level(logging.WARNING, logger="paceline"):
        train(tmp_path, resume="newest-good", steps=6)
    assert re.search(r"step-00000004 is damaged; the run resumes after step 2 \(step-00000002\)", caplog.text)


def test_a_folder_with_damaged_checkpoints_alone_is_not_overwritten(tmp_path):
    train(tmp_path, keep=1)
    (tmp_path / "step-00000004" / "manifest.json").unlink()
    with refused("checkpoint", has(4), remedy=has("--resume")):
        train(tmp_path)
    assert "step-00000004" in steps_in(tmp_path)


def test_a_checkpoint_that_was_not_finished_at_a_kill_is_named(tmp_path, caplog):
    train(tmp_path)
    (tmp_path / ".step-00000006-0a1b2c3d").mkdir()
    with caplog.at_level(logging.WARNING, logger="paceline"):
        run = train(tmp_path, resume="must", steps=8)
    assert run.steps == 8
    expected = r"\.step-00000006-0a1b2c3d was not finished; the run resumes after step 4 \(step-00000004\)"
    assert re.search(expected, caplog.text)
