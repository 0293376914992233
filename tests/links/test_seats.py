import os
import socket

import pytest
import zmq

from paceline.errors import ConfigurationError
from paceline.links.seats import Seat, bind_socket, resolve


@pytest.fixture
def sockets():
    context, made = zmq.Context(), []

    def make():
        made.append(context.socket(zmq.PULL))
        return made[-1]

    yield make
    context.destroy(linger=0)


def free_ports(count):
    """Neighbouring ports of which none is in use."""
    for first in range(20_000 + os.getpid() % 1000, 30_000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return range(first, first + count)
    raise AssertionError("no free ports")


def test_a_seat_without_encryption_has_no_key():
    assert Seat("tcp://127.0.0.1:1").public_key == b""


def test_the_system_chooses_a_port_if_none_is_given(sockets):
    places = {bind_socket(sockets(), "127.0.0.1") for _ in range(3)}
    assert len(places) == 3
    assert all(place.startswith("tcp://127.0.0.1:") for place in places)


def test_the_first_port_that_is_free_is_taken(sockets):
    ports = free_ports(3)
    places = [bind_socket(sockets(), "127.0.0.1", ports) for _ in range(3)]
    assert places == [f"tcp://127.0.0.1:{port}" for port in ports]


def test_ports_that_are_all_in_use_are_named(sockets):
    ports = free_ports(2)
    for _ in ports:
        bind_socket(sockets(), "127.0.0.1", ports)
    text = rf"ports must have one that is not in use on 127.0.0.1, but got '{ports[0]} to {ports[1]}'"
    with pytest.raises(ConfigurationError, match=text):
        bind_socket(sockets(), "127.0.0.1", ports)


def test_a_name_is_resolved(sockets):
    assert bind_socket(sockets(), "localhost").startswith("tcp://127.0.0.1:")


def test_a_name_that_does_not_resolve_is_named(sockets):
    with pytest.raises(ConfigurationError, match="bind must be an address .*'no-such-host.invalid'.*resolve"):
        bind_socket(sockets(), "no-such-host.invalid")


def test_an_address_of_another_host_is_named(sockets):
    with pytest.raises(ConfigurationError, match="bind must be an address of this host, but got '192.0.2.1'"):
        bind_socket(sockets(), "192.0.2.1")


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", ""])
def test_all_interfaces_at_once_are_refused(bind):
    with pytest.raises(ConfigurationError, match="bind must be one address|bind must be an address"):
        resolve(bind)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_the_longer_addresses_serve_too(sockets):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this host has no IPv6 loopback")
    inbox, out = sockets(), sockets().context.socket(zmq.PUSH)
    place = bind_socket(inbox, "::1")
    assert place.startswith("tcp://[::1]:")
    out.ipv6 = True
    out.connect(place)
    out.send(b"x")
    assert inbox.poll(5000)
