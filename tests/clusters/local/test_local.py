import math

import pytest
from refusals import has, refused, unknown

import paceline as pl


@pytest.mark.parametrize("workers", [0, -1, 1.5, "4", None, True, 256])
def test_a_number_of_workers_out_of_range_is_refused(workers):
    with refused("workers", workers, bound=has(1, 255)):
        pl.Local(workers=workers)


def test_an_unknown_link_is_answered_with_those_there_are():
    with unknown("link", "shared_memory", nearest="shared-memory"):
        pl.Local(link="shared_memory")


@pytest.mark.parametrize("deadline_s", [0, -1, math.nan])
def test_a_deadline_that_is_no_time_is_refused(deadline_s):
    with refused("deadline_s", bound=has(0)):
        pl.Local(deadline_s=deadline_s)


@pytest.mark.parametrize("cluster", [pl.Local, pl.Simulated])
def test_stragglers_must_be_ranks_of_the_cluster(cluster):
    with refused("slow", 2, bound=has(0, 1)):
        cluster(workers=2, slow={2: 3.0})
    with refused("delay", 5, bound=has(0, 1)):
        cluster(workers=2, delay={5: pl.times.Constant(1)})


@pytest.mark.parametrize("cluster", [pl.Local, pl.Simulated])
def test_a_factor_that_is_no_slowness_is_refused(cluster):
    with refused("slow[0]", -1.0):
        cluster(workers=2, slow={0: -1.0})
    with refused("delay", 0.5):
        cluster(workers=2, delay=0.5)


def test_a_cluster_says_what_it_is():
    assert str(pl.Local(workers=4)) == "4 local workers"
    assert str(pl.Local(workers=2, slow={1: 3.0})) == "2 local workers, rank 1 3x as slow"
