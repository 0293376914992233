"""Folders of torch.distributed.checkpoint, written and read without a process group."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from refusals import refused
from tasks import a_task, simulated

import paceline as pl
from paceline.files.distributed_checkpoint import read_distributed_checkpoint, write_distributed_checkpoint

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_torch_reads_what_is_written(tmp_path):
    write_distributed_checkpoint(tmp_path / "dcp", STATE)
    found = {"model": {name: torch.zeros_like(tensor) for name, tensor in STATE.items()}}
    dcp.load(found, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    assert same(found["model"], STATE)
    assert [each.name for each in tmp_path.iterdir()] == ["dcp"]


@pytest.mark.parametrize("nested", [lambda s: s, lambda s: {"model": s, "step": 3}, lambda s: {"module": s}])
def test_what_torch_has_written_is_read_wherever_the_model_is(nested, tmp_path):
    dcp.save(nested(dict(STATE)), checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    like = {name: torch.zeros_like(tensor) for name, tensor in STATE.items()}
    assert same(read_distributed_checkpoint(tmp_path / "dcp", like), STATE)
    assert not like["b"], "the model is not changed"


def test_another_model_and_another_folder_are_refused(tmp_path):
    write_distributed_checkpoint(tmp_path / "dcp", STATE)
    for like in ({"c": torch.zeros(1)}, {"a.weight": torch.zeros(3, 2)}):
        with refused("resume"):
            read_distributed_checkpoint(tmp_path / "dcp", like)
    with refused("resume", str(tmp_path)):
        read_distributed_checkpoint(tmp_path, STATE)
    with refused("--out", str(tmp_path / "dcp")):
        write_distributed_checkpoint(tmp_path / "dcp", STATE)


@pytest.mark.parametrize("cluster", [simulated(2), pl.Local(workers=2)], ids=["simulated", "local"])
def test_a_run_begins_with_the_weights_of_the_folder(cluster, tmp_path):
    first = pl.train(a_task(), "all-reduce", simulated(2), steps=3)
    write_distributed_checkpoint(tmp_path / "dcp", first.state)
    frozen = a_task(optimizer=lambda params: torch.optim.SGD(params, lr=0.0))
    assert torch.equal(
        pl.train(frozen, "all-reduce", cluster, steps=1, resume=tmp_path / "dcp").parameters, first.parameters
    )


def test_a_newer_checkpoint_of_the_run_itself_is_preferred(tmp_path):
    write_distributed_checkpoint(tmp_path / "dcp", pl.train(a_task(), "single", simulated(1), steps=3).state)
    words = {"checkpoint": tmp_path / "own", "resume": tmp_path / "dcp"}
    whole = pl.train(a_task(), "single", simulated(1), steps=6, resume=tmp_path / "dcp")
    pl.train(a_task(), "single", simulated(1), steps=4, **words)
    assert torch.equal(
        pl.train(a_task(), "single", simulated(1), steps=6, **words).parameters, whole.parameters
    )
