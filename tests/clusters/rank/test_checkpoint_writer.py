"""Each rank's part in the checkpoints of its run."""

import pytest
import torch
from refusals import refused
from tasks import a_task, simulated

import paceline as pl
from paceline.checkpoints import Store


def test_a_rank_that_does_not_see_the_drivers_folder_says_so_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "begin", lambda self, step: None)  # as if in another host's folder
    with refused("checkpoint", str(tmp_path)):
        pl.train(a_task(), "all-reduce", simulated(2), steps=2, checkpoint=tmp_path)


@pytest.mark.parametrize("spec", ["async", "fedavg", "decentralized"])
def test_a_run_that_has_lost_a_rank_is_kept_and_goes_on_with_all(spec, tmp_path, on_a_quick_disk):
    given = {"checkpoint": tmp_path, "checkpoint_every": 4}
    faults = (pl.faults.Kill(1, step=1),)
    first = pl.train(a_task(), spec, simulated(3, faults=faults), steps=8, **given)
    assert [rank for rank, _ in first.lost] == [1]
    found = Store(tmp_path).newest()
    assert found.step == 8
    assert found.shard(1).facts == {"lost": True}
    resumed = pl.train(a_task(), spec, simulated(3), steps=16, resume="must", **given)
    assert resumed.steps == 16
    assert torch.isfinite(resumed.parameters).all()


def test_a_checkpoint_has_the_model_under_the_names_of_its_state_dict(tmp_path):
    from paceline.checkpoints.model_state import model_state

    for spec in ("sync:servers=2", "local-sgd:period=2", "decentralized:mode=async"):
        folder = tmp_path / spec
        run = pl.train(a_task(), spec, simulated(2), steps=4, checkpoint=folder)
        kept = model_state(Store(folder).newest())
        assert kept.keys() == run.state.keys()
        for name, tensor in run.state.items():
            torch.testing.assert_close(kept[name], tensor, rtol=0, atol=1e-15)
