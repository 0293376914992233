"""Room on a Ray cluster."""

import pytest
from clusters.ray_hosts import leftovers, needs_namespaces, needs_ray, on_ray, on_the_hosts
from refusals import has, raised, refused
from tasks import a_task

import paceline as pl
from paceline.clusters.ray.placement import check_room
from paceline.errors import RunError

pytestmark = on_the_hosts

NODES = [
    {"NodeManagerHostname": "a", "Resources": {"CPU": 4.0, "GPU": 1.0}},
    {"NodeManagerHostname": "b", "Resources": {"CPU": 3.0}},
]


@pytest.mark.parametrize(
    ("ranks", "resources"),
    [
        (7, {"CPU": 1.0}),
        (3, {"CPU": 2.0}),
        (1, {"CPU": 1.0, "GPU": 1.0}),
        (9, {"CPU": 0.7}),
        (4, {"GPU": 0.25}),
    ],
)
def test_ranks_that_fit_are_let_through(ranks, resources):
    check_room(ranks, resources, NODES)


@pytest.mark.parametrize(
    ("ranks", "resources", "room", "found"),
    [
        (8, {"CPU": 1.0}, 7, ["CPU 4", "CPU 3"]),
        (4, {"CPU": 2.0}, 3, ["CPU 4", "CPU 3"]),  # the odd one of b is of no use
        (2, {"CPU": 1.0, "GPU": 1.0}, 1, ["CPU 4, GPU 1", "CPU 3, GPU 0"]),
        (1, {"fast": 1.0}, 0, ["fast 0"]),
    ],
)
def test_what_lacks_is_said_host_by_host(ranks, resources, room, found):
    with refused("resources", has(ranks), remedy=has(room, "a", "b", *found)):
        check_room(ranks, resources, NODES)


@needs_ray
def test_a_cluster_that_is_too_small_refuses_at_once(driver):
    def run():
        pl.train(a_task(), "single", on_ray(workers=1, resources={"CPU": 1, "GPU": 1}), steps=1)

    with refused("resources", has("GPU"), remedy=has(0)):
        driver.call(run)
    assert driver.call(leftovers) == []


@needs_ray
def test_a_cluster_that_is_busy_is_waited_for_until_the_deadline(driver):
    def run():
        import ray

        ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
        try:
            held = ray.util.placement_group([{"CPU": 1}] * 7)
            assert held.wait(30)
            pl.train(a_task(), "sync", pl.Ray(workers=2, deadline_s=1.0), steps=1)
        finally:
            ray.shutdown()

    with raised(RunError, "CPU", 3, 1, 8, 2):
        driver.call(run)
    assert driver.call(leftovers) == []


@needs_ray
@needs_namespaces
@pytest.mark.parametrize(("spread", "hosts_used"), [(True, 2), (False, 1)])
def test_ranks_are_spread_or_packed_and_those_of_a_host_are_neighbours(driver, spread, hosts_used):
    def run():
        from paceline.clusters.ray.connection import connected
        from paceline.clusters.ray.placement import Placement

        with (
            connected("auto", 4, {"CPU": 1.0}),
            Placement(4, {"CPU": 1.0}, spread=spread, deadline_s=30.0) as placement,
        ):
            return placement.host_names

    names = driver.call(run)
    assert len(set(names)) == hosts_used
    assert names == sorted(names)  # this driver's own host is the first
    assert len({names.count(name) for name in names}) == 1
