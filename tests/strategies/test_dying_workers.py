"""The parameter server and federated averaging continue without workers that die, while enough are left."""

import itertools

import pytest
from conformance.cases import one_in
from deaths import deadly_once, dying
from refusals import has, raised
from tasks import a_task, simulated

import paceline as pl
from paceline.errors import PeerLost
from paceline.faults import Kill


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
    with raised(PeerLost, reason=has("SIGKILL")):
        train(spec, tmp_path / "dead")


@pytest.mark.parametrize("spec", ["async", "fedavg"])
def test_the_last_workers_death_ends_the_run(spec, tmp_path):
    with raised(PeerLost, rank=0):
        train(spec, tmp_path / "dead", workers=1)


def test_the_next_model_is_the_mean_of_the_clients_that_live(tmp_path):
    run = train("fedavg:batch=4", tmp_path / "dead")
    ((_, step),) = run.lost
    clients = [record["clients"] for record in run.history]
    assert clients[:step] == [3] * step
    assert clients[step + 1 :] == [2] * (59 - step)


# The first worker serves, and computes in the background

FATAL_STEP = 7
ENOUGH_ALONE = [
    "async",
    "k-async:k=1",
    "k-batch-async:k=2",
    "ssp:staleness=1",
    "k-sync:k=1",
    "k-batch-sync:k=2",
]
"""Strategies that need only one worker."""


def lose_the_second(spec, link, placement="worker", workers=2, steps=40):
    spec = f"{spec}{',' if ':' in spec else ':'}placement={placement}"
    if link == "simulated":
        cluster = simulated(workers, faults=[Kill(1, step=FATAL_STEP)])
        return pl.train(a_task(), spec, cluster, steps=steps)
    cluster = pl.Local(workers=workers, link=link, deadline_s=60)
    return pl.train(a_task(), dying(spec, 1, FATAL_STEP), cluster, steps=steps)


def grid(*specs):
    """All of them in simulation. `make test` tests a third in processes."""
    real = one_in(3, itertools.product(specs, ["tcp", "shared-memory"]))
    return [*real, *(pytest.param(spec, "simulated", id=f"{spec}-simulated") for spec in specs)]


@pytest.mark.parametrize(("spec", "link"), grid(*ENOUGH_ALONE))
def test_a_worker_that_serves_goes_on_alone(spec, link):
    run = lose_the_second(spec, link)
    assert [rank for rank, _ in run.lost] == [1]
    assert [record.step for record in run.history] == list(range(1, 41))


@pytest.mark.parametrize(("spec", "link"), grid("k-async:k=2", "k-sync:k=2"))
def test_a_worker_that_serves_does_not_go_on_if_it_is_too_few(spec, link):
    with raised(PeerLost, rank=1):
        lose_the_second(spec, link)


@pytest.mark.parametrize(("spec", "link"), grid("async", "k-sync:k=1"))
def test_where_every_worker_serves_none_can_be_lost(spec, link):
    with raised(PeerLost, rank=1):
        lose_the_second(spec, link, placement="all", workers=3)
