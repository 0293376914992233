"""Random faults in simulated runs with `min_workers`, for every strategy that can lose workers."""

import contextlib
import re

import pytest
import torch
from elastic import (
    BY_THEMSELVES,
    CHANGES,
    EXACT,
    FREE,
    IN_PARTS,
    check_against_single,
    check_members,
    random_case,
    random_case_by_itself,
    random_case_in_parts,
    single,
)
from tasks import a_task

import paceline as pl
from paceline.errors import PeerLost
from paceline.strategies.registry.survival import survivals


@contextlib.contextmanager
def may_lose_everything(machines):
    """With restarts, all workers that have the state may die before another one has copied it."""
    why = ""
    try:
        yield
    except PeerLost as loss:
        why = loss.reason
    assert not why or (machines.restart and re.search("min_workers|the state of the run", why))


def check(seed):
    number, spec, machines, steps = random_case(seed)
    with may_lose_everything(machines):
        run = pl.train(a_task(**CHANGES[number]), spec, machines, steps=steps)
        check_against_single(run, single(number, steps))


def check_free(seed):
    number, spec, machines, steps = random_case(seed, free=True)
    with may_lose_everything(machines):
        run = pl.train(a_task(**CHANGES[number]), spec, machines, steps=steps)
        assert torch.isfinite(run.parameters).all()
        assert [each.step for each in run.history] == list(range(1, steps + 1))
        check_members(run)


@pytest.mark.parametrize("tens", range(13))
def test_random_faults_change_no_weight_and_no_record(tens):
    for seed in range(10 * tens, 10 * tens + 10):
        check(seed)


@pytest.mark.parametrize("tens", range(7))
def test_random_faults_end_no_run_whose_weights_depend_on_the_workers(tens):
    for seed in range(10 * tens, 10 * tens + 10):
        check_free(seed)


def test_a_rank_that_is_killed_when_all_have_completed_the_run_does_not_join_again():
    check_free(3154)


def check_by_itself(seed):
    number, spec, machines, steps = random_case_by_itself(seed)
    run = pl.train(a_task(**CHANGES[number]), spec, machines, steps=steps)
    assert torch.isfinite(run.parameters).all()
    assert [each.step for each in run.history] == list(range(1, steps + 1))
    check_members(run)


@pytest.mark.parametrize("tens", range(2))
def test_random_faults_end_no_run_whose_programs_continue_by_themselves(tens):
    for seed in range(10 * tens, 10 * tens + 10):
        check_by_itself(seed)


def test_random_faults_cover_every_strategy_that_can_lose_workers():
    tested = {spec.partition(":")[0] for spec in (*EXACT, *FREE, *BY_THEMSELVES, *IN_PARTS)}
    assert {each.name for each in survivals() if each.regroups} <= tested


def check_in_parts(seed, folder):
    number, spec, machines, steps, every = random_case_in_parts(seed)
    options = {"steps": steps, "checkpoint": folder, "checkpoint_every": every}
    with may_lose_everything(machines):
        check_against_single(
            pl.train(a_task(**CHANGES[number]), spec, machines, **options), single(number, steps)
        )


@pytest.mark.parametrize("seed", [5, 15, 70, 80])
def test_random_faults_change_no_weight_of_a_model_in_parts(seed, tmp_path):
    check_in_parts(seed, tmp_path)


@pytest.mark.slow
def test_many_random_faults_in_parts(tmp_path):
    for seed in range(20):
        check_in_parts(seed, tmp_path / str(seed))


@pytest.mark.slow
def test_many_random_faults():
    for seed in range(130, 400):
        check(seed)
        check_free(seed)
        check_by_itself(seed)
