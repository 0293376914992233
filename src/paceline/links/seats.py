"""Where a process of a run is to be reached, and how its socket gets there."""

from __future__ import annotations

import errno
import socket as sockets
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

import zmq

from paceline.errors import ConfigurationError

__all__ = ["Seat", "bind_socket", "resolve"]


@dataclass(frozen=True, slots=True)
class Seat:
    """What the others must know of a process to talk to it. Holds nothing secret."""

    address: str
    """As ZeroMQ writes it: tcp://127.0.0.1:40000."""
    public_key: bytes = b""
    """Empty where there is no encryption."""


def bind_socket(socket: zmq.Socket[bytes], bind: str, ports: range | None = None) -> str:
    """Bind to an address of this host, at the first free of these ports or at any; return where that is."""
    address = resolve(bind)
    socket.ipv6 = isinstance(ip_address(address), IPv6Address)
    place = f"tcp://[{address}]" if socket.ipv6 else f"tcp://{address}"
    for port in ports if ports is not None else ("*",):
        try:
            socket.bind(f"{place}:{port}")
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE:
                raise _refused(bind, port, error) from None
        else:
            return bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).decode()
    given = f"{ports.start} to {ports.stop - 1}" if ports else "none"
    remedy = "give other ports, or none: then the system chooses a free one"
    raise ConfigurationError("ports", f"must have one that is not in use on {bind}", given, remedy)


def resolve(bind: str) -> str:
    """The numeric address of a host, by its name or address."""
    try:
        found = sockets.getaddrinfo(bind, None, type=sockets.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        bound = "must be an address of this host, or a name that resolves to one"
        raise ConfigurationError("bind", bound, bind, f"it does not resolve: {error}") from None
    # Of a name that has both kinds of addresses, the shorter kind: that is what most hosts can reach.
    address = str(sorted(found, key=lambda entry: entry[0] != sockets.AF_INET)[0][4][0])
    if ip_address(address).is_unspecified:
        remedy = "all interfaces would be open to everybody: name the one by which the other ranks come"
        raise ConfigurationError("bind", "must be one address of this host", bind, remedy)
    return address


def _refused(bind: str, port: int | str, error: zmq.ZMQError) -> ConfigurationError:
    if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
        bound, remedy = "must be an address of this host", "`ip address` lists those there are"
        return ConfigurationError("bind", bound, bind, remedy)
    if error.errno == errno.EACCES:
        return ConfigurationError(
            "ports", "must be ports that this user may open", port, "take some above 1023"
        )
    return ConfigurationError("bind", "must be an address that can be bound to", bind, str(error))
