"""Members of a run on several hosts, and their locations. Every rank receives this table before the run starts."""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.errors import RunError
from paceline.links.tcp import PeerAddress
from paceline.system.environment import snapshot

_VERSIONS = ("python", "torch", "paceline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Location and software versions of a process."""

    host: str
    """Host identity. Equal if and only if two processes can share memory."""
    host_name: str
    pid: int
    versions: Mapping[str, str]
    cores: tuple[int, ...] = ()
    """Cores that the process may use. A launcher may have bound it to some of the host's cores."""


def whereabouts() -> Whereabouts:
    """Return the location of this process."""
    facts = snapshot()
    return Whereabouts(
        host=_identity(),
        host_name=socket.gethostname(),
        pid=os.getpid(),
        versions={name: facts[name] for name in _VERSIONS},
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )


def read_whereabouts(values: Mapping[str, Any]) -> Whereabouts:
    """Decode the output of msgpack, which has lists in place of tuples."""
    return Whereabouts(**{**values, "cores": tuple(values["cores"])})


def _identity() -> str:
    """Return a hash of this boot of this machine, and of the namespaces and the user of this process."""
    facts = [platform.node(), getpass.getuser() if os.name != "posix" else str(os.getuid())]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/net", "/proc/self/ns/pid"):
        try:
            facts.append(os.readlink(path) if "/ns/" in path else Path(path).read_text().strip())
        except OSError:
            facts.append("")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Process of one rank."""

    address: PeerAddress
    where: Whereabouts

    def to_values(self) -> dict[str, Any]:
        """Return a mapping that msgpack can encode."""
        return {"address": self.address.to_values(), "where": asdict(self.where)}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Member:
        address = PeerAddress.from_values(values["address"])
        return cls(address=address, where=read_whereabouts(values["where"]))


@dataclass(frozen=True, kw_only=True)
class Table:
    """All members of a run."""

    run_id: bytes
    token: bytes
    """Secret that authenticates a process if there is no encryption."""
    encrypt: bool
    hub: PeerAddress
    members: Sequence[Member]

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        """Host number of each rank."""
        numbers: dict[str, int] = {}
        return tuple(numbers.setdefault(member.where.host, len(numbers)) for member in self.members)

    @cached_property
    def certificates(self) -> dict[str, bytes]:
        """Certificates of all processes, by name."""
        ranks = {str(rank): member.address.certificate for rank, member in enumerate(self.members)}
        return {**ranks, "hub": self.hub.certificate}

    def facts(self) -> dict[str, str]:
        """Return the hosts of the ranks and their connection, for the run's record."""
        places: dict[int, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            places.setdefault(host, []).append(rank)
        hosts = "; ".join(f"{self.name_of(ranks[0])}: {_numbers(ranks)}" for ranks in places.values())
        return {"hosts": hosts, "link": "encrypted TCP" if self.encrypt else "TCP, not encrypted"}

    def threads_of(self, rank: int, workers: int) -> int:
        """Return a rank's share of its host's cores. A core that several workers may use is divided among them.

        Servers mostly wait, and do not count.
        """
        near = [self.members[i].where.cores for i in range(workers) if self.hosts[i] == self.hosts[rank]]
        users = Counter(core for cores in near for core in cores)
        return max(1, int(sum(Fraction(1, max(1, users[core])) for core in self.members[rank].where.cores)))

    def name_of(self, rank: int) -> str:
        """Return the name of a rank's host."""
        return self.members[rank].where.host_name


def _numbers(ranks: Sequence[int]) -> str:
    """Format ranks as ranges, such as 0-2, 5."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def check_versions(found: Sequence[Whereabouts], wanted: Mapping[str, str]) -> None:
    """Refuse processes that differ from the driver in Python, torch or paceline. Their results might differ."""
    for rank, where in enumerate(found):
        for name in _VERSIONS:
            theirs, ours = where.versions[name], wanted[name]
            if theirs != ours:
                raise RunError(
                    f"rank {rank} on host {where.host_name} has {name} {theirs}, but the driver has {ours}; "
                    f"install {name} {ours} there"
                )
