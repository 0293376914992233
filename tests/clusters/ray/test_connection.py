"""Failed connections to a Ray cluster: each is reported immediately and leaves no process."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from clusters.namespaces import Driver, Host
from clusters.ray_hosts import leftovers, needs_namespaces, needs_ray, on_ray, on_the_hosts, run_of
from conformance.cases import STEPS, make_task
from processes import children, wait_until
from refusals import has, raised, refused

import paceline as pl
from paceline.errors import RunError

pytestmark = [needs_ray, on_the_hosts, pytest.mark.slow]

SPEC = "all-reduce:algorithm=ring"


def train(address):
    return run_of(pl.train(make_task(), SPEC, on_ray(address, workers=2), steps=STEPS))


@pytest.fixture(scope="module")
def alone():
    """A process of this machine without information on a cluster."""
    driver = Driver(Host("here", "127.0.0.1"), {})
    yield driver
    driver.close()


def test_without_an_address_a_private_ray_serves_the_run_and_is_gone_afterwards(alone):
    def run():
        import ray

        was = set(Path("/tmp").glob("paceline-ray-*"))
        run = run_of(pl.train(make_task(), SPEC, on_ray(None, workers=2), steps=STEPS))
        return run, ray.is_initialized(), set(Path("/tmp").glob("paceline-ray-*")) - was

    run, is_connected, files = alone.call(run)
    local = pl.train(make_task(), SPEC, pl.Local(workers=2, threads=1), steps=STEPS)
    assert torch.equal(run["parameters"], local.parameters)
    assert run["cluster"] == "2 workers on a private Ray, 1 thread a rank"
    assert not is_connected
    assert not files
    assert children(alone.pid()) == []


def test_a_head_that_stops_answering_ends_the_run_with_an_error_and_leaves_nothing():
    """In a separate process, because Ray's behaviour afterwards is undefined."""

    def run():
        from paceline.clusters.ray import connection

        start = connection._start

        def start_and_stop(*given):
            start(*given)
            heads = [
                p for p in children(os.getpid()) if b"gcs_server" in Path(f"/proc/{p}/cmdline").read_bytes()
            ]
            os.kill(heads[0], signal.SIGSTOP)
            connection._ANSWER_S = 2.0

        connection._start = start_and_stop
        pl.train(make_task(), SPEC, pl.Ray(workers=2), steps=STEPS)

    driver = Driver(Host("here", "127.0.0.1"), {})
    try:
        with raised(RunError, "2 s"):
            driver.call(run)
        pid = driver.pid()
        wait_until(lambda: children(pid) == [], "Ray's processes are gone")
    finally:
        driver.close()


def test_a_connection_of_the_user_s_own_is_used_and_left(driver):
    def run():
        import ray

        ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
        try:
            job = ray.get_runtime_context().get_job_id()
            run_of(pl.train(make_task(), SPEC, on_ray(None, workers=2), steps=STEPS))
            return ray.is_initialized() and ray.get_runtime_context().get_job_id() == job
        finally:
            ray.shutdown()

    assert driver.call(run)
    assert driver.call(leftovers) == []


def test_a_connection_to_another_cluster_is_refused(driver):
    def run():
        import ray

        ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
        try:
            train("127.0.0.1:1")
        finally:
            ray.shutdown()

    with refused("address", "127.0.0.1:1", bound=has("ray.init")):
        driver.call(run)


def test_an_address_where_nobody_listens_is_refused(alone):
    with refused("address", has("127.0.0.1:1")):
        alone.call(train, "127.0.0.1:1")


def test_a_name_that_does_not_resolve_is_refused(alone):
    with refused("address", "nowhere.invalid:1"):
        alone.call(train, "nowhere.invalid:1")


def test_what_listens_but_is_no_ray_is_refused(alone):
    def run():
        from ray.util import get_node_ip_address

        with socket.create_server((get_node_ip_address(), 0)) as mute:
            train(f"{get_node_ip_address()}:{mute.getsockname()[1]}")

    with refused("address"):
        alone.call(run)


@pytest.fixture(scope="module")
def elsewhere(hosts):
    """A process of a machine that is not in the cluster."""
    return hosts.driver(len(hosts.hosts))


@needs_namespaces
def test_auto_on_a_machine_without_a_cluster_is_refused(elsewhere):
    with refused("address", "auto"):
        elsewhere.call(train, "auto")


@needs_namespaces
def test_a_machine_that_is_not_in_the_cluster_is_told_so(hosts, elsewhere):
    with refused("address", remedy=has("ray start")):
        elsewhere.call(train, hosts.address)


def test_a_wrong_token_is_refused(hosts):
    driver = hosts.driver(RAY_AUTH_TOKEN="f" * 32)
    with refused("the token", has("RAY_AUTH_TOKEN")):
        driver.call(train, hosts.address)


def test_a_missing_token_is_refused(hosts):
    driver = hosts.driver(RAY_AUTH_TOKEN="", RAY_AUTH_MODE="disabled", HOME="/nonexistent")
    with refused("the token", "none", remedy=has("RAY_AUTH_MODE=token")):
        driver.call(train, hosts.address)


def test_another_version_of_ray_is_refused(driver):
    def run():
        import ray

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ray, "__version__", "1.2.3")
            train("auto")

    with raised(RunError, "auto", "1.2.3"):
        driver.call(run)


def test_without_ray_the_error_says_what_to_install():
    program = (
        "import sys; sys.modules['ray'] = None; sys.path[:0] = sys.argv[1:]\n"
        "import paceline as pl; from tasks import a_task; pl.train(a_task(), 'single', pl.Ray(), steps=1)"
    )
    words = [sys.executable, "-c", program, str(Path(__file__).parents[2])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "pl.Ray needs the package ray" in done.stderr
    assert "pip install 'paceline[ray]'" in done.stderr
