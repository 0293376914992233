"""Who takes part in a run on several hosts, and where: what every rank is told before it begins."""

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

from paceline.environment import snapshot
from paceline.errors import RunError
from paceline.links.seats import Seat

__all__ = ["Member", "Table", "Whereabouts", "check_versions", "read_whereabouts", "whereabouts"]

_VERSIONS = ("python", "torch", "paceline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a process runs, and with what."""

    host: str
    """The same for processes that can share memory, and for no others."""
    host_name: str
    pid: int
    versions: Mapping[str, str]
    cores: tuple[int, ...] = ()
    """Those that the process may use: a launcher may have bound it to some of its host's."""


def whereabouts() -> Whereabouts:
    """This process's own."""
    facts = snapshot()
    return Whereabouts(
        host=_identity(),
        host_name=socket.gethostname(),
        pid=os.getpid(),
        versions={name: facts[name] for name in _VERSIONS},
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )


def read_whereabouts(values: Mapping[str, Any]) -> Whereabouts:
    """From what msgpack gives, which has lists in place of tuples."""
    return Whereabouts(**{**values, "cores": tuple(values["cores"])})


def _identity() -> str:
    """Stands for this boot of this machine, and for the namespaces and the user that this process runs in."""
    facts = [platform.node(), getpass.getuser() if os.name != "posix" else str(os.getuid())]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/net", "/proc/self/ns/pid"):
        try:
            facts.append(os.readlink(path) if "/ns/" in path else Path(path).read_text().strip())
        except OSError:
            facts.append("")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank's process."""

    seat: Seat
    where: Whereabouts

    def to_values(self) -> dict[str, Any]:
        """As msgpack takes it."""
        return asdict(self)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Member:
        return cls(seat=Seat(**values["seat"]), where=read_whereabouts(values["where"]))


@dataclass(frozen=True, kw_only=True)
class Table:
    """All ranks of a run."""

    run_id: bytes
    token: bytes
    """What lets a process in where there is no encryption."""
    encrypt: bool
    hub: Seat
    members: Sequence[Member]

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        """The host of each rank, as a number."""
        numbers: dict[str, int] = {}
        return tuple(numbers.setdefault(member.where.host, len(numbers)) for member in self.members)

    @cached_property
    def keys(self) -> dict[str, bytes]:
        """The public key of each by its name."""
        ranks = {str(rank): member.seat.public_key for rank, member in enumerate(self.members)}
        return {**ranks, "hub": self.hub.public_key}

    def facts(self) -> dict[str, str]:
        """For the run's record: where its ranks were, and how they talked."""
        places: dict[int, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            places.setdefault(host, []).append(rank)
        hosts = "; ".join(f"{self.name_of(ranks[0])}: {_numbers(ranks)}" for ranks in places.values())
        return {"hosts": hosts, "link": "encrypted TCP" if self.encrypt else "TCP, not encrypted"}

    def threads_of(self, rank: int, workers: int) -> int:
        """A rank's share of its host's cores: each is shared out among the workers that may use it.

        Servers mostly wait, and do not count.
        """
        near = [self.members[i].where.cores for i in range(workers) if self.hosts[i] == self.hosts[rank]]
        users = Counter(core for cores in near for core in cores)
        return max(1, int(sum(Fraction(1, max(1, users[core])) for core in self.members[rank].where.cores)))

    def name_of(self, rank: int) -> str:
        """A rank's host, for people."""
        return self.members[rank].where.host_name


def _numbers(ranks: Sequence[int]) -> str:
    """Ranks as people write them: 0-2, 5."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def check_versions(found: Sequence[Whereabouts], wanted: Mapping[str, str]) -> None:
    """Refuse processes whose Python, torch or paceline is not the driver's: what they compute might differ."""
    for rank, where in enumerate(found):
        for name in _VERSIONS:
            theirs, ours = where.versions[name], wanted[name]
            if theirs != ours:
                raise RunError(
                    f"rank {rank} on host {where.host_name} has {name} {theirs}, but the driver has {ours}; "
                    f"install {name} {ours} there"
                )
