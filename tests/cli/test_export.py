import pytest
import torch
from checkpoints.shards import save, shard_of
from chosen_runs import run_of
from cli.test_cli import invoke
from disks import files_of_at_most
from safetensors.torch import load_file

from paceline.checkpoints import Store
from paceline.files.distributed_checkpoint import read_distributed_checkpoint


@pytest.fixture
def checkpoints(tmp_path):
    for step in (10, 20):
        save(Store(tmp_path / "x"), step)
    return tmp_path / "x"


def test_the_newest_checkpoints_model_is_a_plain_file(checkpoints, tmp_path):
    result = invoke("export", str(checkpoints), "--out", str(tmp_path / "model.safetensors"))
    assert result.exit_code == 0, result.stderr
    assert "1 tensor" in result.stdout
    assert "step-00000020" in result.stdout
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == {"0.weight"}
    assert torch.equal(found["0.weight"], shard_of(0, 20).tensors["parameters/0.weight"])


def test_a_runs_model_is_a_plain_file(tmp_path):
    run = run_of("sync")
    run.state, run.trainable = {"w": torch.arange(3.0)}, ["w"]
    run.save(tmp_path / "run")
    assert invoke("export", str(tmp_path / "run"), "--out", str(tmp_path / "out")).exit_code == 0
    assert load_file(tmp_path / "out")["w"].tolist() == [0, 1, 2]


def test_a_damaged_checkpoint_is_passed_over_aloud(checkpoints, tmp_path):
    (checkpoints / "step-00000020" / "rank-00000.safetensors").write_bytes(b"")
    result = invoke("export", str(checkpoints), "--out", str(tmp_path / "out"))
    assert result.exit_code == 0
    assert "step-00000010" in result.stdout
    assert "skipped the newest checkpoint" in result.stderr
    assert "rank-00000.safetensors" in result.stderr


@pytest.mark.parametrize("name", ["empty", "nowhere"])
def test_a_folder_without_a_model_has_exit_code_2_and_no_file_is_made(tmp_path, name):
    (tmp_path / "empty").mkdir()
    result = invoke("export", str(tmp_path / name), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "must hold a run or a checkpoint" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_the_file_that_was_there(checkpoints, tmp_path):
    (tmp_path / "out").write_bytes(b"old")
    with files_of_at_most(100):
        result = invoke("export", str(checkpoints), "--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "could not be saved: File too large" in result.stderr
    assert (tmp_path / "out").read_bytes() == b"old"


def test_a_model_becomes_a_folder_of_torch_distributed_checkpoint(tmp_path):
    run = run_of("sync")
    run.state, run.trainable = {"w": torch.arange(3.0)}, ["w"]
    run.save(tmp_path / "run")
    result = invoke("export", str(tmp_path / "run"), "--dcp", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.stderr
    assert read_distributed_checkpoint(tmp_path / "out", {"w": torch.zeros(3)})["w"].tolist() == [0, 1, 2]
