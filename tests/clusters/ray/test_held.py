"""Processes on Ray that are reused from run to run."""

import os

import pytest
from clusters.ray_hosts import leftovers, needs_ray, on_ray, on_the_hosts

from paceline.clusters.base.job import Job
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


@pytest.mark.slow
def test_processes_stay_until_more_are_needed_or_a_run_fails(driver):
    def run():
        with on_ray(workers=2).hold() as cluster:
            one = processes(cluster, "worker")
            again = processes(cluster, "worker")
            two = processes(cluster, "worker", "server")
            fewer = processes(cluster, "worker")
            with pytest.raises(WorkerError):
                processes(cluster, "unlucky")
            return one, again, two, fewer, processes(cluster, "worker")

    one, again, two, fewer, after_failure = driver.call(run)
    assert again == one
    assert len(two) == 2
    assert not set(two) & set(one)
    assert fewer == two[:1]
    assert not set(after_failure) & set(two)
    assert driver.call(leftovers) == []
