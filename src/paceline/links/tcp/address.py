"""Addresses of the processes of a run, and the sockets that listen there."""

from __future__ import annotations

import errno
import socket as sockets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any

from paceline.errors import ConfigurationError

_BACKLOG = 1024  # all ranks of a run may connect to one rank at the same time


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The data that other processes need to connect to a process. It contains no secret."""

    host: str
    """A numeric address."""
    port: int
    certificate: bytes = b""
    """The process's certificate (DER). Empty without encryption."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def to_values(self) -> dict[str, Any]:
        """Return a mapping that JSON and msgpack can encode."""
        return {**asdict(self), "certificate": self.certificate.hex()}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> PeerAddress:
        return cls(values["host"], values["port"], bytes.fromhex(values["certificate"]))


def listen(bind: str, ports: range | None = None) -> sockets.socket:
    """Listen at an address of this host, on the first free port of `ports`; None if any port will do."""
    address = resolve(bind)
    family = sockets.AF_INET6 if ip_address(address).version == 6 else sockets.AF_INET
    for port in ports if ports is not None else (0,):
        try:
            listener = sockets.create_server((address, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _refused(bind, port, error) from None
        else:
            listener.setblocking(False)
            return listener
    given = f"{ports.start} to {ports.stop - 1}" if ports else "none"
    remedy = "give other ports, or none to use any free port"
    raise ConfigurationError("ports", f"must contain a free port on {bind}", given, remedy)


def resolve(bind: str) -> str:
    """Return the numeric address of a host name or address."""
    try:
        found = sockets.getaddrinfo(bind, None, type=sockets.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        bound = "must be an address of this host, or a name that resolves to one"
        raise ConfigurationError("bind", bound, bind, f"it does not resolve: {error}") from None
    # Prefer IPv4 if a name has both: most hosts can reach it.
    address = str(sorted(found, key=lambda entry: entry[0] != sockets.AF_INET)[0][4][0])
    if ip_address(address).is_unspecified:
        remedy = "it would listen on all interfaces: give the address that the other ranks connect to"
        raise ConfigurationError("bind", "must be one address of this host", bind, remedy)
    return address


def address_towards(host: str, port: int) -> str:
    """Return this host's address on the route to another one. Raise OSError if the name does not resolve."""
    family, _, _, _, target = sockets.getaddrinfo(host, port, type=sockets.SOCK_DGRAM)[0]
    with sockets.socket(family, sockets.SOCK_DGRAM) as probe:
        probe.connect(target)  # connecting a UDP socket sends nothing, but selects an interface
        return str(probe.getsockname()[0])


def _refused(bind: str, port: int, error: OSError) -> ConfigurationError:
    if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
        bound, remedy = "must be an address of this host", "`ip address` lists them"
        return ConfigurationError("bind", bound, bind, remedy)
    if error.errno == errno.EACCES:
        return ConfigurationError(
            "ports", "must be ports that this user may open", port, "use ports above 1023"
        )
    return ConfigurationError("bind", "must be an address that can be bound to", bind, str(error))
