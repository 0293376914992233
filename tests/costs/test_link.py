import copy
import math
import pickle
from dataclasses import FrozenInstanceError

import pytest
from refusals import refused

from paceline.costs import Link


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    link = Link(bandwidth="10Gbps", latency="50us")
    assert link.latency_s == 50e-6
    assert link.bytes_per_s == 1.25e9
    assert link.seconds_per_byte == 1 / 1.25e9
    assert link.seconds(0) == 50e-6
    assert link.seconds(1_250_000) == pytest.approx(1.05e-3)


def test_a_link_keeps_what_was_written() -> None:
    link = Link("10Gbps", "50us")
    assert (link.bandwidth, link.latency) == ("10Gbps", "50us")
    assert repr(link) == "Link(bandwidth='10Gbps', latency='50us', message=0.0)"
    assert str(link) == "10 Gbit/s, 50 µs"


def test_links_that_cost_the_same_are_equal() -> None:
    assert Link("10Gbps", "50us") == Link(1.25e9, 50e-6)
    assert hash(Link("10Gbps")) == hash(Link("1.25GB/s"))
    assert Link("10Gbps") != Link("10Gbps", "1us")


def test_the_ideal_link_costs_nothing() -> None:
    assert Link.ideal().seconds(10**18) == 0.0
    assert Link.ideal() == Link(math.inf, 0) == Link()
    assert str(Link.ideal()) == "ideal (no cost)"


def test_what_is_not_given_costs_nothing() -> None:
    assert Link("1GB/s").latency_s == 0
    assert Link(latency="1ms").seconds(10**12) == 1e-3


@pytest.mark.parametrize("bandwidth", [0, -1, "0Gbps", math.nan, "10G", None])
def test_a_link_without_a_bandwidth_is_refused(bandwidth: object) -> None:
    with refused("Link.bandwidth"):
        Link(bandwidth=bandwidth)  # type: ignore[arg-type]


@pytest.mark.parametrize("latency", [-1, "-1us", math.nan, math.inf, "soon"])
def test_a_latency_that_is_negative_or_endless_is_refused(latency: object) -> None:
    with refused("Link.latency"):
        Link("1Gbps", latency)  # type: ignore[arg-type]


def test_a_link_cannot_change_and_can_travel() -> None:
    link = Link("10Gbps", "50us")
    with pytest.raises(FrozenInstanceError):
        link.latency = 0  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(link)) == link == copy.deepcopy(link)


def test_each_message_may_cost_time_besides_its_bytes():
    link = Link("1GB/s", "10us", message="5us")
    assert link.carry_s(1000) == pytest.approx(6e-6)
    assert link.seconds(1000) == pytest.approx(16e-6)
    assert link != Link("1GB/s", "10us")
    assert "5 µs a message" in str(link)
