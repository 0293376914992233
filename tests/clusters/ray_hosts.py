"""Helpers of the tests of pl.Ray: hosts, and the processes on them."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

import pytest
from clusters.namespaces import can_make_hosts
from processes import marked

import paceline as pl

PATIENCE_S = 300.0
"""Timeout for the start of Ray's processes on a busy machine. Nothing is measured with it."""

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'paceline[ray]'"
)
on_the_hosts = pytest.mark.xdist_group("ray")
"""Mark for modules with tests that share the hosts: the tests run in one process, which starts the hosts once."""
needs_namespaces = pytest.mark.skipif(
    bool(can_make_hosts()), reason=f"network namespaces cannot be made here: {can_make_hosts()}"
)


def on_ray(address="auto", **options):
    """A cluster with long timeouts for a busy machine.

    It gives the bits of a simulation with the same number of threads.
    """
    return pl.Ray(address, **({"deadline_s": PATIENCE_S, "threads": 1} | options))


def run_of(run):
    """The results of a run that tests use, without trace and model."""
    return {
        "parameters": run.parameters,
        "history": run.history,
        "lost": run.lost,
        "environment": run.environment,
        "cluster": run.cluster,
        "seconds": run.seconds,
    }


def leftovers():
    """Return the living actors and placement groups of the cluster."""
    import ray

    ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    try:
        actors = [a["ActorClassName"] for a in ray._private.state.actors().values() if a["State"] != "DEAD"]
        groups = [
            g["name"] or g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"
        ]
        return actors + groups
    finally:
        ray.shutdown()


def actors_on(host, method=""):
    """The processes of a host that are ranks; those that run a method of theirs, if one is named."""
    title = f"ray::RankActor.{method}" if method else "ray::RankActor"
    return [pid for pid in marked(host.mark) if _title(pid).startswith(title) and _is_on(pid, host)]


def _title(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().strip("\0 ")
    except OSError:
        return ""


def _is_on(pid, host):
    try:
        return not host.enter or os.readlink(f"/proc/{pid}/ns/net") == os.readlink(
            f"/proc/{host.inside}/ns/net"
        )
    except OSError:
        return False


def wait_for(holds, what):
    """Poll until something of Ray's holds; fail with `what` if it never does."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, f"waited {PATIENCE_S:g} s until {what}"
        time.sleep(0.1)
