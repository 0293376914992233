"""The parameter server and federated averaging go on without workers that die, as long as enough are left."""

import pytest
from deaths import deadly_once
from tasks import a_task

import paceline as pl
from paceline.errors import PeerLost


def train(spec, flag, workers=3):
    return pl.train(a_task(loss=deadly_once(flag)), spec, pl.Local(workers=workers, deadline_s=20), steps=60)


@pytest.mark.parametrize(
    "spec",
    [
        "async",
        "k-sync:k=2",
        "k-batch-async:k=2",
        "ssp:staleness=1",
        "fedavg:batch=4",
        "fedavgm:batch=4,fraction=0.6",
    ],
)
def test_the_run_goes_on_and_its_record_names_the_rank_and_the_step(spec, tmp_path):
    run = train(spec, tmp_path / "dead")
    ((rank, step),) = run.lost
    assert rank in (0, 1, 2)
    assert 0 <= step < 60
    assert run.steps == 60
    assert run.as_dict()["lost"] == [(rank, step)]


@pytest.mark.parametrize("spec", ["sync", "k-sync:k=3"])
def test_the_run_ends_when_too_few_are_left(spec, tmp_path):
    with pytest.raises(PeerLost, match=r"rank \d is lost \(killed by SIGKILL"):
        train(spec, tmp_path / "dead")


@pytest.mark.parametrize("spec", ["async", "fedavg"])
def test_the_last_workers_death_ends_the_run(spec, tmp_path):
    with pytest.raises(PeerLost, match="rank 0 is lost"):
        train(spec, tmp_path / "dead", workers=1)


def test_the_next_model_is_the_mean_of_the_clients_that_live(tmp_path):
    run = train("fedavg:batch=4", tmp_path / "dead")
    ((_, step),) = run.lost
    clients = [record["clients"] for record in run.history]
    assert clients[:step] == [3] * step
    assert clients[step + 1 :] == [2] * (59 - step)
