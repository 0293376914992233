import dataclasses
import errno
import json
import math

import numpy as np
import pytest
import torch
from disks import files_of_at_most
from old_runs import make_old, remove_message_ids
from refusals import has, raised, refused
from tasks import WORLDS, a_task, samples, simulated
from torch import nn

import paceline as pl
from paceline.errors import DamagedError, SaveError
from paceline.runs.run import FORMAT, Record, Run
from paceline.trace import Trace


def distance(outputs, targets):
    return -float((outputs - targets).abs().mean())


def measured_task(**changes):
    return a_task(**({"test": samples(6), "metric": distance, "target": -10.0} | changes))


@pytest.fixture(scope="module")
def run():
    return pl.train(measured_task(), "all-reduce:algorithm=ring", simulated(2), steps=4, seed=3)


def history_of(*metrics, losses=(1.0,), **changes):
    records = [
        Record(i + 1, 0.5 * (i + 1), losses[i % len(losses)], metric, 8 * (i + 1), 100 * (i + 1))
        for i, metric in enumerate(metrics)
    ]
    return Run(
        strategy="single",
        cluster="somewhere",
        seed=0,
        history=records,
        trace=Trace([], 2.0),
        seconds=2.0,
        bytes_sent=[],
        messages_sent=[],
        staleness={},
        **({"target": 0.9} | changes),
    )


# Texts of a run


def test_a_record_is_readable_as_a_mapping():
    record = Record(1, 0.5, 2.0, None, 8, 100, {"staleness": 3.0}, 0.25)
    assert dict(record) == {
        "step": 1,
        "seconds": 0.5,
        "loss": 2.0,
        "metric": None,
        "samples": 8,
        "bytes": 100,
        "epoch": 0.25,
        "staleness": 3.0,
    }
    assert record["loss"] == record.loss


def test_a_record_has_no_other_entries():
    with pytest.raises(KeyError):
        Record(1, 0.5, 2.0, None, 8, 100)["nonsense"]


def test_the_parameters_are_those_of_the_model_in_one_flat_tensor(run):
    flat = torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])
    assert torch.equal(run.parameters, flat)


def test_a_run_sums_up_its_history(run):
    last = run.history[-1]
    assert (run.steps, run.seconds, run.loss, run.metric) == (4, last.seconds, last.loss, last.metric)
    assert run.step_seconds == run.seconds / 4
    inputs, targets = samples(6)
    with torch.no_grad():
        assert run.metric == distance(run.model(inputs), targets)


def test_the_target_is_reached_when_the_metric_first_comes_up_to_it():
    run = history_of(None, 0.5, 0.9, 0.3)
    assert run.reached_target
    assert run.seconds_to_target == 1.5
    assert run.metric == 0.3


def test_where_lower_is_better_the_target_is_reached_when_the_metric_comes_down_to_it():
    run = history_of(None, 1.5, 0.9, 0.95, better="lower")
    assert run.record_at_target.step == 3
    assert run.seconds_to_target == 1.5
    assert not history_of(1.5, 0.91, better="lower").reached_target


def test_epochs_are_those_of_the_last_step(run):
    assert run.epochs == run.history[-1].epoch == 4 * 8 / 24
    assert [record.epoch for record in run.history] == [record.samples / 24 for record in run.history]
    assert history_of().epochs is None


def test_a_target_that_is_missed_has_no_time():
    run = history_of(None, 0.5, 0.89)
    assert not run.reached_target
    assert run.seconds_to_target is None


def test_a_run_without_steps_has_no_loss_and_no_pace():
    run = history_of()
    assert run.steps == 0
    assert math.isnan(run.loss)
    assert math.isnan(run.step_seconds)


def test_the_figures_of_a_run_are_json(run):
    figures = json.loads(json.dumps(run.as_dict(), allow_nan=False))
    assert figures["strategy"] == "all-reduce:algorithm=ring"
    assert figures["samples"] == 24 + 8
    assert figures["reached_target"] is True
    shares = [figures[f"{part}_share"] for part in ("compute", "communicate", "update", "idle")]
    assert all(0 <= share <= 1 for share in shares)


def test_figures_that_are_not_numbers_are_left_empty():
    figures = history_of(losses=(math.nan,)).as_dict()
    assert figures["loss"] is None
    json.dumps(figures, allow_nan=False)


# Files on disk


def test_what_is_saved_can_be_loaded(run, tmp_path):
    run.save(tmp_path / "some" / "run")
    loaded = pl.Run.load(tmp_path / "some" / "run")
    for field in dataclasses.fields(Run):
        if field.name not in ("state", "trace", "module"):
            assert getattr(loaded, field.name) == getattr(run, field.name), field.name
    assert loaded.trace.spans == run.trace.spans
    assert loaded.trace.seconds == run.trace.seconds
    assert torch.equal(loaded.parameters, run.parameters)
    assert loaded.as_dict() == run.as_dict()


def test_a_run_knows_what_it_learned(run):
    known = {
        key: run.fingerprint[key] for key in ("samples", "test samples", "batch size", "metric", "target")
    }
    assert list(known.values()) == ["24", "6", "8", "distance", "-10"]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ["sync", "hogwild", "fedavg", "local-sgd"])
def test_every_strategy_and_world_learns_the_same(run, spec, world):
    other = pl.train(measured_task(), spec, WORLDS[world](2), steps=2)
    assert other.fingerprint == run.fingerprint


def test_a_run_knows_what_it_was_made_with(run):
    assert run.environment["torch"] == torch.__version__
    assert run.environment["command"]


def test_a_run_saved_before_runs_knew_that_can_be_loaded(run, tmp_path):
    run.save(tmp_path)
    make_old(tmp_path)
    manifest = json.loads((tmp_path / "run.json").read_text())
    for key in ("environment", "fingerprint", "better"):
        del manifest[key]
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    history = [json.dumps({key: value for key, value in line.items() if key != "epoch"}) for line in lines]
    (tmp_path / "history.jsonl").write_text("\n".join(history))
    loaded = pl.Run.load(tmp_path)
    assert (loaded.environment, loaded.fingerprint, loaded.better) == ({}, {}, "higher")
    assert loaded.epochs is None


def test_with_the_task_the_model_is_loaded_too(run, tmp_path):
    run.save(tmp_path)
    with refused("task", None):
        _ = pl.Run.load(tmp_path).model
    model = pl.Run.load(tmp_path, task=measured_task()).model
    inputs = samples(3)[0]
    assert torch.equal(model(inputs), run.model(inputs))


def test_tied_weights_and_batch_statistics_can_be_saved_and_loaded(tmp_path):
    def model():
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2)).double()
        net[2].weight = net[0].weight
        return net

    task = a_task(model=model)
    run = pl.train(task, "all-reduce", simulated(2), steps=2)
    run.save(tmp_path)
    loaded = pl.Run.load(tmp_path, task=task)
    assert torch.equal(loaded.parameters, run.parameters)
    assert loaded.state["1.num_batches_tracked"] == 2
    assert loaded.model[2].weight is loaded.model[0].weight


def test_a_loss_that_is_not_a_number_comes_back_as_such(tmp_path):
    history_of(None, losses=(math.nan,)).save(tmp_path)
    assert math.isnan(pl.Run.load(tmp_path).loss)


def test_a_run_without_mathematics_can_be_saved_and_loaded(tmp_path):
    run = pl.train(measured_task(), "all-reduce", simulated(2, math="none"), steps=2)
    run.save(tmp_path)
    assert pl.Run.load(tmp_path).seconds == run.seconds


def test_the_files_are_plain(run, tmp_path):
    run.save(tmp_path)
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert json.loads((tmp_path / "run.json").read_text())["format"] == FORMAT
    np.load(tmp_path / "spans.npz", allow_pickle=False)
    assert not [path for path in tmp_path.iterdir() if b"cpickle" in path.read_bytes().lower()]


def test_a_folder_without_a_run_is_refused(tmp_path):
    with refused("directory", str(tmp_path), bound=has("run.json")):
        pl.Run.load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "one"}', '{"format": null}', "7"])
def test_a_damaged_manifest_is_refused(run, tmp_path, text):
    run.save(tmp_path)
    (tmp_path / "run.json").write_text(text)
    with raised(DamagedError, file="run.json"):
        pl.Run.load(tmp_path)


def test_a_newer_format_is_refused(run, tmp_path):
    run.save(tmp_path)
    manifest = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(manifest | {"format": FORMAT + 1}))
    with refused("directory", FORMAT + 1, bound=has(FORMAT)):
        pl.Run.load(tmp_path)


def test_a_run_saved_before_spans_had_message_ids_is_loaded_without_causes(run, tmp_path):
    run.save(tmp_path)
    assert pl.Run.load(tmp_path).trace == run.trace
    remove_message_ids(tmp_path)
    loaded = pl.Run.load(tmp_path)
    assert loaded.trace.summary() == run.trace.summary()
    assert all((spans.array["message"] == -1).all() for spans in loaded.trace.spans)


def test_a_history_that_ends_after_a_whole_record_is_refused_too(run, tmp_path):
    run.save(tmp_path)
    make_old(tmp_path)
    path = tmp_path / "history.jsonl"
    *kept, _ = path.read_text().splitlines(keepends=True)
    path.write_text("".join(kept))
    with raised(DamagedError, file="history.jsonl"):
        pl.Run.load(tmp_path)


@pytest.mark.parametrize("name", ["history.jsonl", "spans.npz", "model.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_file_is_refused_by_name(run, tmp_path, name, damage):
    run.save(tmp_path)
    path = tmp_path / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with raised(DamagedError, file=name):
        pl.Run.load(tmp_path)


# A disk that is full


def all_files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def a_large_model():
    return nn.Sequential(nn.Linear(4, 4000), nn.Linear(4000, 2)).double()


@pytest.mark.parametrize("limit", [100, 1000, 100_000], ids=["history", "trace", "model"])
def test_a_save_that_fails_leaves_the_older_run_whole(tmp_path, limit):
    """The limits are such that another file of the run is the first that does not fit."""
    run = pl.train(measured_task(model=a_large_model), "single", simulated(1), steps=4)
    history_of(None).save(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    before = all_files(tmp_path)
    with (
        files_of_at_most(limit),
        raised(SaveError, filename=str(tmp_path), errno=errno.EFBIG),
    ):
        run.save(tmp_path)
    assert all_files(tmp_path) == before
    assert pl.Run.load(tmp_path).strategy == "single"


def test_a_save_that_fails_in_a_new_folder_leaves_nothing(run, tmp_path):
    with files_of_at_most(1000), pytest.raises(SaveError):
        run.save(tmp_path / "runs" / "first")
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_replaced_and_other_files_stay(run, tmp_path):
    history_of(None).save(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "1").write_text("mine")
    run.save(tmp_path)
    assert pl.Run.load(tmp_path).strategy == run.strategy
    names = {"run.json", "history.jsonl", "trace.json", "spans.npz", "model.safetensors", "checkpoints/1"}
    assert set(all_files(tmp_path)) == names


def test_a_loaded_run_can_be_saved_where_it_came_from(run, tmp_path):
    """Its model may still be mapped from the file that is replaced."""
    run.save(tmp_path)
    loaded = pl.Run.load(tmp_path)
    loaded.save(tmp_path)
    assert torch.equal(loaded.parameters, run.parameters)
    assert torch.equal(pl.Run.load(tmp_path).parameters, run.parameters)


def test_a_task_of_another_model_is_refused(run, tmp_path):
    run.save(tmp_path)
    other = measured_task(model=lambda: nn.Linear(4, 2).double())
    with refused("task"):
        pl.Run.load(tmp_path, task=other)


def test_other_states_and_metrics_of_the_model_are_saved_too(tmp_path):
    task = measured_task(ema=0.9, metric={"distance": distance, "other": distance})
    run = pl.train(task, "single", simulated(1), steps=4, callbacks=[pl.callbacks.KeepBest()])
    run.save(tmp_path)
    found = Run.load(tmp_path)
    assert found.best_metric == run.best_metric is not None
    assert (found.other_metrics, found.last("other")) == (["other"], run.metric)
    for name in ("ema_state", "best_state"):
        saved, kept = getattr(found, name), getattr(run, name)
        assert set(saved) == set(kept)
        assert all(torch.equal(saved[key], kept[key]) for key in kept)


def test_a_run_without_other_states_has_no_files_of_them(run, tmp_path):
    run.save(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["model.safetensors"]
    assert Run.load(tmp_path).ema_state == Run.load(tmp_path).best_state == {}
