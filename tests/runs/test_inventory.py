import json
import os

import pytest
import torch
from checkpoints.shards import save, shard_of
from chosen_runs import run_of
from old_runs import make_old
from refusals import raised, refused

from paceline.checkpoints import Store
from paceline.errors import DamagedError
from paceline.runs.inventory import CHECKPOINT, RUN, model_of, saved_in


@pytest.fixture
def folder(tmp_path):
    run_of("sync").save(tmp_path / "a" / "finished")
    for step in (10, 20):
        save(Store(tmp_path / "b"), step, metric=step / 100)
    return tmp_path


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def found_in(folder, **words):
    return {str(each.folder.relative_to(folder)): each for each in saved_in(folder, **words)}


def test_runs_and_checkpoints_are_found_with_step_metric_size_and_age(folder):
    found = found_in(folder)
    assert list(found) == ["a/finished", "b/step-00000010", "b/step-00000020"]
    run, _, newest = found.values()
    assert (run.kind, run.step, run.metric) == (RUN, run_of("sync").steps, run_of("sync").metric)
    assert (newest.kind, newest.step, newest.metric) == (CHECKPOINT, 20, 0.2)
    assert newest.nbytes == sum(path.stat().st_size for path in newest.folder.iterdir())
    assert all(each.is_whole and not each.problem and 0 <= each.age_s < 3600 for each in found.values())
    json.dumps([each.as_dict() for each in found.values()])


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("a/finished", "run.json"),
        ("a/finished", "trace.json"),
        ("a/finished", "model.safetensors"),
        ("b/step-00000020", "manifest.json"),
        ("b/step-00000020", "rank-00001.safetensors"),
    ],
)
def test_what_is_damaged_is_listed_with_the_file(folder, place, name):
    flip(folder / place / name)
    found = found_in(folder)
    assert [key for key, each in found.items() if not each.is_whole] == [place]
    assert found[place].problem.startswith(f"{name}: ")


def test_a_checkpoint_that_lost_its_manifest_is_listed_as_damaged(folder):
    (folder / "b" / "step-00000020" / "manifest.json").unlink()
    found = found_in(folder)["b/step-00000020"]
    assert not found.is_whole
    assert found.problem.startswith("manifest.json: ")


def test_without_reading_what_was_cut_off_is_found_and_a_flipped_bit_is_not(folder):
    flip(folder / "a" / "finished" / "model.safetensors")
    os.truncate(folder / "b" / "step-00000010" / "rank-00000.safetensors", 10)
    found = found_in(folder, verify=False)
    assert [key for key, each in found.items() if not each.is_whole] == ["b/step-00000010"]


def test_of_a_run_without_checksums_it_is_not_known_whether_it_is_whole(folder):
    make_old(folder / "a" / "finished")
    assert found_in(folder)["a/finished"].is_whole is None


def test_a_newer_format_is_said(folder):
    (folder / "b" / "step-00000010" / "manifest.json").write_text('{"format": 99}')
    assert "newer Paceline" in found_in(folder)["b/step-00000010"].problem


def test_links_and_what_is_being_written_are_left_out(folder):
    (folder / "link").symlink_to(folder / "a")
    Store(folder / "b").write(30, shard_of(0, 30))
    assert len(found_in(folder)) == 3


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with refused("DIR"):
        list(saved_in(tmp_path / "nowhere"))


# Models


def test_the_model_of_a_run_is_its_state(folder):
    run = run_of("sync")
    run.state, run.trainable = {"w": torch.ones(2)}, ["w"]
    run.save(folder / "c")
    assert model_of(folder / "c").state["w"].tolist() == [1, 1]


def test_the_model_of_checkpoints_is_that_of_the_newest(folder):
    found = model_of(folder / "b")
    assert found.source == folder / "b" / "step-00000020"
    assert not found.skipped
    assert torch.equal(found.state["0.weight"], shard_of(0, 20).tensors["parameters/0.weight"])


def test_one_checkpoint_can_be_named(folder):
    found = model_of(folder / "b" / "step-00000010")
    assert torch.equal(found.state["0.weight"], shard_of(0, 10).tensors["parameters/0.weight"])


def test_a_damaged_checkpoint_is_passed_over_and_that_is_said(folder):
    flip(folder / "b" / "step-00000020" / "rank-00001.safetensors")
    found = model_of(folder / "b")
    assert found.source == folder / "b" / "step-00000010"
    assert "rank-00001.safetensors" in found.skipped


def test_a_damaged_checkpoint_that_was_named_is_refused(folder):
    place = folder / "b" / "step-00000020"
    flip(place / "rank-00001.safetensors")
    with raised(DamagedError, file="rank-00001.safetensors"):
        model_of(place)


def test_a_folder_with_neither_is_refused(tmp_path):
    with refused("DIR", str(tmp_path)):
        model_of(tmp_path)
