"""Processes on Ray that stay from run to run."""

import os

import pytest
from clusters.ray_hosts import leftovers, needs_ray, on_the_hosts

import paceline as pl
from paceline.clusters.job import Job
from paceline.errors import WorkerError

pytestmark = [needs_ray, on_the_hosts]


class _Roles:
    async def worker(self, ctx):
        return f"{ctx.rank}: {os.uname().nodename} {os.getpid()}"

    server = worker

    async def unlucky(self, ctx):
        raise ValueError("no")


def processes(cluster, *roles):
    outcomes = cluster.run(Job(strategy=_Roles(), roles=roles, seed=0))
    return [outcome.result for outcome in outcomes]


def test_processes_stay_until_more_are_needed_or_a_run_fails(driver):
    def run():
        with pl.Ray("auto", workers=2).hold() as cluster:
            two = processes(cluster, "worker", "worker")
            one = processes(cluster, "worker")
            three = processes(cluster, "worker", "worker", "server")
            with pytest.raises(WorkerError):
                processes(cluster, "unlucky")
            return two, one, three, processes(cluster, "worker")

    two, one, three, after_failure = driver.call(run)
    assert one == two[:1]
    assert len(three) == 3
    assert not set(three) & set(two)
    assert not set(after_failure) & set(three)
    assert driver.call(leftovers) == []
