"""Links between two ranks that differ from the others: what is accepted, and what is refused."""

import pytest
from refusals import refused

import paceline as pl
from paceline.costs.slow_links import parse_slow_links, slow_links

LINK = pl.Link("10Gbps", "1ms")


def test_a_bandwidth_alone_has_the_latency_of_the_other_links():
    assert slow_links({(3, 0): "100Mbps"}, LINK) == {(0, 3): pl.Link("100Mbps", "1ms")}
    assert slow_links({(0, 3): pl.Link("1Gbps")}, LINK) == {(0, 3): pl.Link("1Gbps")}


@pytest.mark.parametrize("pair", [3, (0,), (0, 1, 2), (0, -1), (0, 1.0), (0, True), (2, 2), "03"], ids=str)
def test_what_is_no_pair_of_ranks_is_refused(pair):
    with refused("slow_links", pair):
        slow_links({pair: "1Gbps"}, LINK)


def test_a_pair_is_named_once_and_among_links_that_have_a_cost():
    given = {(0, 1): "1Gbps", (1, 0): "2Gbps"}
    with refused("slow_links", given):
        slow_links(given, LINK)
    with refused("slow_links", {(0, 1): "1Gbps"}):
        pl.Local(workers=2, slow_links={(0, 1): "1Gbps"})
    with refused("slow_links", [3]):
        pl.Simulated(workers=2, slow_links=[3])


@pytest.mark.parametrize("cluster", [pl.Simulated, pl.Local])
def test_ranks_that_a_run_does_not_have_are_refused(cluster):
    async def program(ctx): ...

    with refused("slow_links", (0, 7)):
        pl.run_program(program, cluster(workers=2, link=LINK, slow_links={(0, 7): "1Gbps"}))


def test_the_words_of_the_option_are_two_ranks_and_a_bandwidth():
    assert parse_slow_links(["0-3:100Mbps", "1-2: 1GiB/s"]) == {(0, 3): "100Mbps", (1, 2): "1GiB/s"}
    with refused("--slow-link", "0:100Mbps"):
        parse_slow_links(["0:100Mbps"])
