import os
import socket

import pytest
from refusals import has, refused

from paceline.links.tcp.address import PeerAddress, listen, resolve


@pytest.fixture
def listening():
    """Listens as `listen` does, and closes the sockets after the test. Returns the address."""
    made = []

    def listen_at(bind, ports=None):
        made.append(listen(bind, ports))
        return PeerAddress(*made[-1].getsockname()[:2])

    yield listen_at
    for each in made:
        each.close()


def free_ports(count):
    """Return consecutive ports that are all free."""
    for first in range(20_000 + os.getpid() % 1000, 30_000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return range(first, first + count)
    raise AssertionError("no free ports")


def test_an_address_survives_its_encoding():
    address = PeerAddress("10.0.0.1", 4000, bytes(range(256)))
    assert PeerAddress.from_values(address.to_values()) == address


def test_an_address_reads_as_people_write_it():
    assert str(PeerAddress("10.0.0.1", 4000)) == "10.0.0.1:4000"
    assert str(PeerAddress("::1", 4000)) == "[::1]:4000"


def test_the_system_chooses_a_port_if_none_is_given(listening):
    places = {listening("127.0.0.1") for _ in range(3)}
    assert len(places) == 3
    assert {place.host for place in places} == {"127.0.0.1"}


def test_the_first_port_that_is_free_is_taken(listening):
    ports = free_ports(3)
    assert [listening("127.0.0.1", ports).port for _ in range(3)] == list(ports)


def test_ports_that_are_all_in_use_are_named(listening):
    ports = free_ports(2)
    for _ in ports:
        listening("127.0.0.1", ports)
    with refused("ports", has(*ports), bound=has("127.0.0.1")):
        listening("127.0.0.1", ports)


def test_a_name_is_resolved(listening):
    assert listening("localhost").host == "127.0.0.1"


def test_a_name_that_does_not_resolve_is_named(listening):
    with refused("bind", "no-such-host.invalid"):
        listening("no-such-host.invalid")


def test_an_address_of_another_host_is_named(listening):
    with refused("bind", "192.0.2.1"):
        listening("192.0.2.1")


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", ""])
def test_all_interfaces_at_once_are_refused(bind):
    with refused("bind", bind):
        resolve(bind)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_ipv6_address_can_be_connected_to(listening):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this host has no IPv6 loopback")
    place = listening("::1")
    with socket.create_connection((place.host, place.port)) as connected:
        assert connected.getpeername()[1] == place.port
