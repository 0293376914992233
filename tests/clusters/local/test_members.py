"""A local run with `min_workers` loses processes to real signals, and gives the weights of `single`."""

import dataclasses
import os

import pytest
import torch
from elastic import CHANGES, check_against_single, check_members, random_processes, single
from refusals import has, raised, refused
from tasks import a_task, simulated

import paceline as pl
from paceline.errors import PeerLost
from paceline.faults import Join, Kill, Pause
from paceline.testing.tasks import make_task

STEPS = 8
TCP = {"link": "tcp"}
ENCRYPTED = TCP | {"encrypt": True}
EMULATED = {"link": pl.Link("1Gbps", "1ms"), "compute": pl.times.Constant("2ms")}


def trained(*faults, number=0, spec="all-reduce", **changes):
    names = ("checkpoint", "checkpoint_every")
    options = {name: changes.pop(name) for name in names if name in changes}
    machines = pl.Local(**({"workers": 4, "min_workers": 2, "faults": faults} | changes))
    return pl.train(a_task(**CHANGES[number]), spec, machines, steps=STEPS, **options)


@pytest.mark.parametrize(
    ("faults", "number", "changes"),
    [
        ([Kill(1, step=3)], 1, {}),
        ([Kill(0, step=2), Kill(2, at=0.0)], 3, {}),
        ([Kill(0, step=STEPS - 1), Kill(1, step=5)], 4, {}),
        ([Kill(0, step=3), Kill(3, step=5)], 2, EMULATED),
        ([Kill(0, step=3), Kill(2, at=0.0)], 3, TCP),
        ([Kill(1, step=2), Kill(3, step=2)], 1, ENCRYPTED),
    ],
    ids=str,
)
def test_the_weights_are_those_of_single_whatever_processes_are_killed(faults, number, changes):
    run = trained(*faults, number=number, **changes)
    check_against_single(run, single(number, STEPS))
    assert {rank for rank, _ in run.lost} == {fault.rank for fault in faults}


@pytest.mark.parametrize(
    ("spec", "faults"),
    [
        ("sync", [Kill(1, step=3)]),
        pytest.param("sync:placement=worker", [Kill(3, at=0.0), Kill(1, step=5)], marks=pytest.mark.slow),
        pytest.param("map-reduce", [Kill(0, step=2), Kill(3, step=7)], marks=pytest.mark.slow),
        pytest.param("central-storage", [Kill(2, step=3)], marks=pytest.mark.slow),
        ("local-sgd:period=2,post_local=100", [Kill(0, step=3), Kill(2, step=4)]),
    ],
)
@pytest.mark.parametrize("changes", [{}, pytest.param(TCP, marks=pytest.mark.slow)], ids=["memory", "tcp"])
def test_other_strategies_give_the_weights_of_single_too(spec, faults, changes):
    run = trained(*faults, number=1, spec=spec, **changes)
    check_against_single(run, single(1, STEPS))
    assert {rank for rank, _ in run.lost} == {fault.rank for fault in faults}


@pytest.mark.parametrize(
    ("spec", "faults"),
    [
        pytest.param("k-sync:k=2", [Kill(1, step=3)], marks=pytest.mark.slow),
        ("k-batch-sync:k=3,placement=worker", [Kill(3, step=0)]),
        pytest.param("async", [Kill(2, step=0), Kill(0, step=0)], marks=pytest.mark.slow),
        pytest.param("diloco:period=4,fragments=2,delay=1", [Kill(0, step=5)], marks=pytest.mark.slow),
        ("fedavg", [Kill(1, step=2)]),
        pytest.param("decentralized", [Kill(1, step=2)], marks=pytest.mark.slow),
    ],
)
def test_strategies_whose_weights_depend_on_the_workers_end(spec, faults):
    run = trained(*faults, spec=spec)
    assert [each.step for each in run.history] == list(range(1, STEPS + 1))
    assert {rank for rank, _ in run.lost} == {each.rank for each in faults}
    check_members(run)


@pytest.mark.parametrize(
    "spec",
    [
        "all-reduce",
        pytest.param("sync:placement=worker", marks=pytest.mark.slow),
        pytest.param("local-sgd:period=2,post_local=100", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("changes", [{}, ENCRYPTED], ids=["memory", "tcp"])
def test_a_new_process_of_a_lost_rank_joins(spec, changes):
    machines = {"restart": True, "compute": pl.times.Constant("0.1s")} | changes
    run = trained(Kill(2, step=1), number=1, spec=spec, **machines)
    check_against_single(run, single(1, STEPS))
    assert [rank for rank, _ in run.joined] == [2]
    assert set(run.generations[-1].members) == {0, 1, 2, 3}


def test_loaders_of_the_remaining_workers_load_the_batches_of_a_lost_one():
    task = make_task("dataset", loaders=1)
    alone = pl.train(make_task("dataset"), "single", simulated(1), steps=STEPS)
    for spec in ("all-reduce", "sync"):
        machines = pl.Local(workers=3, min_workers=1, restart=True, faults=[Kill(1, step=2)])
        run = pl.train(task, spec, machines, steps=STEPS)
        torch.testing.assert_close(run.parameters, alone.parameters, rtol=0, atol=1e-12)
        assert len(run.generations) > 1


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("zero:stage=1", marks=pytest.mark.slow),
        "zero:stage=3",
        pytest.param("pipeline", marks=pytest.mark.slow),
        "hybrid:tensor=2,zero=3",
    ],
)
def test_without_a_part_the_processes_go_back_to_the_newest_checkpoint(spec, tmp_path):
    run = trained(
        *(Kill(0, step=5), Kill(2, step=7)),
        number=2,
        spec=spec,
        compute=pl.times.Constant("0.1s"),
        checkpoint=tmp_path,
        checkpoint_every=2,
    )
    check_against_single(run, single(2, STEPS))
    assert {rank for rank, _ in run.lost} == {0, 2}


def test_a_run_resumes_from_the_checkpoint_of_the_remaining_workers(tmp_path):
    machines = pl.Local(workers=3, min_workers=2, faults=[Kill(0, step=3)])
    options = {"steps": 6, "checkpoint": tmp_path, "checkpoint_every": 2}
    pl.train(a_task(), "all-reduce", machines, **options)
    run = pl.train(
        a_task(), "all-reduce", pl.Local(workers=2), **options | {"steps": STEPS, "resume": "must"}
    )
    torch.testing.assert_close(run.parameters, single(0, STEPS).parameters, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("join", [Join(at=0.6), Join(step=4)], ids=str)
def test_a_process_joins_when_a_fault_says_so(join):
    run = trained(Kill(1, step=1), join, compute=pl.times.Constant("0.15s"))
    check_against_single(run, single(0, STEPS))
    assert [rank for rank, _ in run.joined] == [1]


@pytest.mark.parametrize("changes", [{}, TCP, {"restart": True}], ids=["memory", "tcp", "restart"])
def test_a_process_that_is_stopped_for_too_long_is_lost(changes):
    run = trained(Pause(0, step=3, seconds=600), deadline_s=1.0, **changes)
    check_against_single(run, single(0, STEPS))
    assert [rank for rank, _ in run.lost] == [0]


def check(seed, **changes):
    number, spec, machines, steps = random_processes(seed)
    machines = dataclasses.replace(machines, **changes)
    try:
        run = pl.train(a_task(**CHANGES[number]), spec, machines, steps=steps)
    except PeerLost as loss:  # all that have the state may die before a new process has copied it
        run, why = None, loss.reason
    if run is None:
        assert machines.restart, why
    else:
        check_against_single(run, single(number, steps))


@pytest.mark.parametrize("seed", range(12))
def test_random_kills_change_no_weight_and_no_record(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, int(os.environ.get("PACELINE_KILL_SEEDS", "12"))))
def test_more_random_kills_change_no_weight_and_no_record(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_kills_change_nothing_over_tcp_either(seed):
    check(seed, link="tcp", encrypt=bool(seed % 2))


def test_too_few_processes_end_the_run():
    with raised(PeerLost, reason=has("min_workers=3", "SIGKILL")):
        trained(Kill(0, step=2), Kill(1, step=4), min_workers=3)


def test_an_algorithm_that_cannot_repeat_a_step_is_refused():
    with refused("algorithm", "shared"):
        trained(spec="all-reduce:algorithm=shared")
