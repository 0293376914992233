"""Ranks on the hosts of a Ray cluster give the same results as in a simulation and on one machine."""

from __future__ import annotations

import os
import re
import signal

import pytest
import torch
from clusters.ray_hosts import (
    actors_on,
    leftovers,
    needs_namespaces,
    needs_ray,
    on_ray,
    on_the_hosts,
    run_of,
    wait_for,
)
from conformance.cases import ASYNCHRONOUS, REPRODUCIBLE, SPECS, STEPS, make_task
from orders import makes_rings_in_its_own_order, receives_in_the_other_order
from processes import is_alive
from refusals import has, raised, refused
from tasks import a_task, a_wide_task, samples, simulated

import paceline as pl
from paceline.errors import ConfigurationError, PeerLost, WorkerError

pytestmark = [needs_ray, on_the_hosts, pytest.mark.slow]

WORKERS = 4
ON_ONE_HOST = ["all-reduce:algorithm=shared", "hogwild"]
"""Strategies that need memory shared by all workers."""
RING = {"local-sgd", "diloco"}
"""Strategies with sums that depend on the algorithm. `auto` selects another algorithm on several hosts."""


def with_ring(spec):
    name = spec.partition(":")[0]
    if name in RING and "algorithm=" not in spec:
        return f"{spec},algorithm=ring"
    return spec


ACROSS = [with_ring(spec) for spec in SPECS if spec not in ON_ONE_HOST]
EQUAL = [spec for spec in ACROSS if spec in {with_ring(each) for each in REPRODUCIBLE}]


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"address": "head"}, "address"),
        ({"address": "head:0"}, "address"),
        ({"address": "head:65536"}, "address"),
        ({"address": "ray://head:10001"}, "address"),
        ({"address": 6379}, "address"),
        ({"workers": 0}, "workers"),
        ({"servers": -1}, "servers"),
        ({"resources": {}}, "resources"),
        ({"resources": {"CPU": 0}}, "resources['CPU']"),
        ({"resources": {"CPU": "many"}}, "resources['CPU']"),
        ({"resources": ["CPU"]}, "resources"),
        ({"ports": (20000, 20100)}, "ports"),
        ({"ports": range(0)}, "ports"),
        ({"ports": range(65000, 66000)}, "ports"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"threads": 0}, "threads"),
        ({"slow": {4: 2.0}}, "slow"),
        ({"slow": {1: 0.5}}, "slow[1]"),
    ],
)
def test_a_bad_argument_is_refused_where_it_is_made(given, argument):
    with refused(argument):
        pl.Ray(**given)


@pytest.mark.parametrize("address", [None, "auto", "head:6379", "10.0.0.1:6379", "[fe80::1]:6379", "a-b.c:1"])
def test_addresses(address):
    assert pl.Ray(address).address == address


def test_a_number_of_servers_that_is_not_the_strategy_s_is_refused():
    with refused("servers", 1, bound=has(2)):
        pl.train(a_task(), "sync:servers=2", pl.Ray(servers=1), steps=1)


def run_all(specs, refused):
    """Results of all strategies in turn on the hosts, with the same processes, and the refusal of the last one."""
    specs = sorted(specs, key=lambda spec: "servers=2" not in spec)  # as many processes as are ever needed
    with on_ray(workers=WORKERS).hold() as cluster:
        runs = {spec: run_of(pl.train(make_task(), spec, cluster, steps=STEPS)) for spec in specs}
        try:
            pl.train(make_task(), refused, cluster, steps=STEPS)
        except ConfigurationError as error:
            runs[refused] = str(error)
        programs = (receives_in_the_other_order, makes_rings_in_its_own_order)
        return runs | {program.__name__: pl.run_program(program, cluster).results for program in programs}


@pytest.fixture(scope="module")
def across(hosts):
    """The results of each strategy across hosts."""
    driver = hosts.driver()
    yield driver.call(run_all, [*ACROSS, "all-reduce"], ON_ONE_HOST[0])
    driver.close()


@pytest.mark.parametrize("spec", EQUAL)
def test_a_strategy_across_hosts_gives_the_bits_of_a_simulation(across, spec):
    """And so those of local processes, as conformance/test_same_bits.py says."""
    virtual = pl.train(make_task(), spec, simulated(WORKERS), steps=STEPS)
    assert torch.equal(across[spec]["parameters"], virtual.parameters)


@pytest.mark.parametrize("spec", [spec for spec in ACROSS if spec not in EQUAL])
def test_an_asynchronous_strategy_runs_across_hosts(across, spec):
    run = across[spec]
    assert spec == "single" or spec.partition(":")[0] in ASYNCHRONOUS | {"decentralized"}
    assert len(run["history"]) >= STEPS
    assert torch.isfinite(run["parameters"]).all()


def test_operations_begin_when_they_are_awaited_across_hosts_too(across):
    others = WORKERS - 1
    assert across[receives_in_the_other_order.__name__] == [None, *[[1.0, 2.0]] * others]
    assert across[makes_rings_in_its_own_order.__name__] == [[WORKERS, 10 * WORKERS]] * WORKERS


class Watcher:
    wants_state = True

    def __init__(self):
        self.seen = []

    def on_step(self, record):
        self.seen.append(record.step)

    def on_evaluate(self, record, state):
        self.seen.append(sorted(state))
        return pl.STOP if record.step >= 4 else None


def watched_run(spec, cluster):
    """A run that needs the driver: callbacks, and a schedule that depends on the metric."""
    task = a_task(
        test=samples(),
        metric=lambda outputs, targets: float(outputs.mean()),
        schedule=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    )
    watcher = Watcher()
    run = pl.train(task, spec, cluster, steps=20, evaluate_every=2, callbacks=[watcher])
    return run_of(run), watcher.seen


@pytest.mark.parametrize("spec", ["all-reduce:algorithm=ring", "local-sgd:period=2,algorithm=ring"])
def test_callbacks_see_and_stop_a_run_across_hosts(driver, spec):
    run, seen = driver.call(lambda: watched_run(spec, on_ray(workers=WORKERS)))
    expected, expected_seen = watched_run(spec, simulated(WORKERS))
    assert seen == expected_seen
    assert len(run["history"]) == len(expected["history"]) < 20
    assert torch.equal(run["parameters"], expected["parameters"])


@needs_namespaces
def test_all_reduce_is_hierarchical_on_several_hosts(across):
    task, clusters = make_task(), simulated(WORKERS, hosts=2)
    expected = pl.train(task, "all-reduce:algorithm=hierarchical", clusters, steps=STEPS)
    assert torch.equal(across["all-reduce"]["parameters"], expected.parameters)


@needs_namespaces
def test_a_run_says_where_it_was(across):
    facts = across["sync:servers=2"]["environment"]
    assert facts["hosts"] == "host0: 0-2; host1: 3-5"
    assert facts["link"] == "encrypted TCP"
    assert "ray" in facts


def test_nothing_is_left_of_runs_that_ended_well_or_were_refused(across, driver):
    assert driver.call(leftovers) == []


@needs_namespaces
def test_what_needs_shared_memory_is_refused_across_hosts(across):
    assert re.search(r"memory|one host", across[ON_ONE_HOST[0]])


@pytest.mark.slow
def test_what_needs_shared_memory_runs_where_ranks_are_packed_on_one_host(driver):
    def run():
        with on_ray(workers=2, spread=False).hold() as cluster:
            return {spec: run_of(pl.train(make_task(), spec, cluster, steps=STEPS)) for spec in ON_ONE_HOST}

    for spec, found in driver.call(run).items():
        assert len(found["history"]) >= STEPS, spec


@pytest.fixture(scope="module")
def unencrypted(driver):
    """A run that ends well and, by the same processes, the error of one that does not."""

    def run():
        def loss(outputs, targets):
            raise ValueError("an unlucky loss")

        given = on_ray(workers=2, encrypt=False, ports=range(21000, 21010))
        with given.hold() as cluster:
            run = run_of(pl.train(a_wide_task(), "all-reduce:algorithm=ring", cluster, steps=2))
            with pytest.raises(WorkerError) as caught:
                pl.train(a_task(loss=loss), "all-reduce:algorithm=ring", cluster, steps=1)
            return run, caught.value

    return driver.call(run)


@needs_namespaces
def test_without_encryption_the_run_says_so(unencrypted):
    run, _ = unencrypted
    assert run["environment"]["link"] == "TCP, not encrypted"
    assert "not encrypted" in run["cluster"]


def test_without_encryption_large_payloads_give_the_bits_of_a_simulation(unencrypted):
    """They go by streams."""
    run, _ = unencrypted
    virtual = pl.train(a_wide_task(), "all-reduce:algorithm=ring", simulated(2), steps=2)
    assert torch.equal(run["parameters"], virtual.parameters)


# Failures


def endless(spec, workers, **options):
    """A run that continues until it is disturbed."""
    return run_of(pl.train(a_task(), spec, on_ray(workers=workers, **options), steps=10**9))


@needs_namespaces
def test_a_killed_process_ends_the_run_with_its_rank_and_host(driver, hosts):
    driver.start(endless, "all-reduce:algorithm=ring", 2)
    wait_for(lambda: actors_on(hosts.hosts[1], "work"), "a rank is at work")
    os.kill(actors_on(hosts.hosts[1], "work")[0], signal.SIGKILL)
    with raised(PeerLost, rank=1, reason=has("ended", "host1")) as caught:
        driver.result()
    assert caught.value.rank == 1
    assert driver.call(leftovers) == []


@pytest.mark.slow
@needs_namespaces
def test_a_strategy_that_can_do_without_a_rank_goes_on(driver, hosts, tmp_path):
    began = tmp_path / "began"

    def run():
        def loss(outputs, targets):
            return torch.nn.functional.mse_loss(outputs, targets)

        cluster = on_ray(workers=3, delay=pl.times.Constant(0.02))
        task = a_task(loss=loss)
        return run_of(pl.train(task, "async", cluster, steps=400, progress=lambda _: began.touch()))

    driver.start(run)
    # Before that, a run cannot continue without any rank.
    wait_for(began.exists, "the run has begun")
    os.kill(actors_on(hosts.hosts[0], "work")[0], signal.SIGKILL)
    run = driver.result()
    assert [rank for rank, _ in run["lost"]] in ([0], [1])
    assert len(run["history"]) == 400
    assert driver.call(leftovers) == []


@pytest.mark.slow
def test_an_interrupt_ends_the_actors(driver, hosts):
    driver.start(endless, "all-reduce:algorithm=ring", 2)
    wait_for(lambda: actors_on(hosts.hosts[0], "work"), "a rank is at work")
    os.kill(driver.pid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        driver.result()
    assert driver.call(leftovers) == []


@pytest.mark.slow
def test_a_killed_driver_leaves_no_actor(driver, hosts):
    doomed = hosts.driver()
    doomed.start(endless, "all-reduce:algorithm=ring", 2)
    wait_for(lambda: actors_on(hosts.hosts[0], "work"), "a rank is at work")
    os.kill(doomed.pid(), signal.SIGKILL)
    wait_for(
        lambda: not actors_on(hosts.hosts[0]) and not actors_on(hosts.hosts[-1]), "Ray has ended the actors"
    )
    wait_for(lambda: driver.call(leftovers) == [], "Ray has freed what they held")


def test_an_error_in_the_user_s_code_comes_back_with_its_rank(unencrypted, driver):
    _, error = unencrypted
    assert "an unlucky loss" in str(error)
    assert error.rank in (0, 1)
    assert driver.call(leftovers) == []


@pytest.mark.slow
@needs_namespaces
def test_a_host_that_is_lost_is_named(own_hosts):
    driver = own_hosts.driver()
    driver.start(endless, "all-reduce:algorithm=ring", 2)
    wait_for(lambda: actors_on(own_hosts.hosts[1], "work"), "a rank is at work")
    own_hosts.hosts[1].end()
    with raised(PeerLost, rank=1, reason=has("host1")):
        driver.result()
    assert is_alive(driver.pid())
