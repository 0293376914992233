"""Processes on Ray that stay from run to run."""

import os

import pytest
from clusters.ray_hosts import leftovers, needs_ray, on_the_hosts

import paceline as pl
from paceline.errors import WorkerError

pytestmark = [needs_ray, on_the_hosts]


async def process(ctx):
    return os.getpid(), ctx.rank


async def failing(ctx):
    raise ValueError("no")


def test_processes_stay_until_a_run_fails_or_the_block_ends(driver):
    def run():
        found = []
        with pl.Ray("auto", workers=2).hold() as cluster:
            found += [pl.run_program(process, cluster).results for _ in range(2)]
            with pytest.raises(WorkerError):
                pl.run_program(failing, cluster)
            found.append(pl.run_program(process, cluster).results)
        return found

    first, second, third = driver.call(run)
    assert first == second
    assert [rank for _, rank in first] == [0, 1]
    assert not set(first) & set(third)
    assert driver.call(leftovers) == []


def test_a_run_of_fewer_ranks_takes_some_of_the_processes_and_one_of_more_gets_new_ones(driver):
    def run():
        # A server each makes three ranks, which the run of one worker alone then chooses from.
        with pl.Ray("auto", workers=2).hold() as cluster:
            three = _results(cluster, ("worker", "worker", "server"))
            one = _results(cluster, ("worker",))
            four = _results(cluster, ("worker", "worker", "server", "server"))
        return three, one, four

    three, one, four = driver.call(run)
    assert set(one) <= set(three)
    assert len(four) == 4
    assert not set(four) & set(three)
    assert driver.call(leftovers) == []


class _Roles:
    async def worker(self, ctx):
        return os.getpid()

    server = worker


def _results(cluster, roles):
    from paceline.clusters.job import Job

    return [outcome.result for outcome in cluster.run(Job(strategy=_Roles(), roles=roles, seed=0))]
