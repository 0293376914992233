"""Every strategy gives the same results over TCP."""

import pytest
import torch
from conformance.cases import PASSING_MESSAGES, REPRODUCIBLE, SHARING_MEMORY, STEPS, make_task, one_in
from refusals import refused
from tasks import a_wide_task, simulated

import paceline as pl
from paceline.testing.checks import check_trains

CASE = "batch-not-divisible"


def train(spec, **changes):
    return pl.train(
        make_task(CASE, "momentum"), spec, pl.Local(workers=3, link="tcp", threads=1, **changes), steps=STEPS
    )


@pytest.mark.parametrize("spec", one_in(5, zip(PASSING_MESSAGES)))
def test_a_strategy_runs_over_tcp(spec):
    run = check_trains(spec, pl.Local(workers=3, link="tcp", threads=1), make_task(CASE, "momentum"))
    if spec in REPRODUCIBLE or spec == "single":
        virtual = pl.train(make_task(CASE, "momentum"), spec, simulated(3), steps=STEPS)
        assert torch.equal(run.parameters, virtual.parameters), "not the same bits as in simulation"
        assert [record.loss for record in run.history] == [record.loss for record in virtual.history]


@pytest.mark.parametrize("spec", ["all-reduce", "sync:servers=2", "async"])
def test_a_strategy_runs_over_encrypted_tcp(spec):
    run = train(spec, encrypt=True)
    if spec in REPRODUCIBLE:
        virtual = pl.train(make_task(CASE, "momentum"), spec, simulated(3), steps=STEPS)
        assert torch.equal(run.parameters, virtual.parameters)
    assert run.steps == STEPS


@pytest.mark.parametrize(
    "spec", one_in(3, zip(["all-reduce:algorithm=ring", "map-reduce", "sync:servers=2", "async"]))
)
def test_a_large_model_runs_over_tcp(spec):
    """A model with messages that do not fit into the buffer of a connection."""
    task = a_wide_task()
    assert sum(parameter.nbytes for parameter in task.build_model(0).parameters()) / 3 > 2**18
    run = pl.train(task, spec, pl.Local(workers=3, link="tcp", threads=1), steps=STEPS)
    assert torch.isfinite(run.parameters).all()
    if spec in REPRODUCIBLE:
        assert torch.equal(run.parameters, pl.train(task, spec, simulated(3), steps=STEPS).parameters)


def test_messages_and_bytes_are_counted_as_over_shared_memory():
    over_memory = pl.train(
        make_task(CASE, "momentum"), "all-reduce:algorithm=ring", pl.Local(workers=3), steps=STEPS
    )
    over_tcp = train("all-reduce:algorithm=ring")
    assert over_tcp.messages_sent == over_memory.messages_sent
    assert over_tcp.bytes_sent == over_memory.bytes_sent


@pytest.mark.parametrize("spec", SHARING_MEMORY)
def test_what_needs_shared_memory_is_refused_with_the_remedy(spec):
    with refused("hosts" if spec == "hogwild" else "window"):
        train(spec)
