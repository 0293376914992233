"""Start of a run on several hosts, for every launcher: terms of the connections, versions, and the task's pickle."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from paceline.clusters.base.job import Job
from paceline.clusters.hosts.code import travelling_by_value
from paceline.clusters.hosts.rank import Assignment
from paceline.clusters.hosts.table import Whereabouts, check_versions, whereabouts
from paceline.clusters.process.payload import NOT_SENT, Packed
from paceline.costs.stragglers import Stragglers
from paceline.errors import RunError
from paceline.links.memory.shared import SharedMemory
from paceline.links.tcp import RUN_ID_BYTES
from paceline.system.user_code import user_code

LOOPBACK = "127.0.0.1"
START_S = 60.0
"""Minimum start timeout: a busy host needs time to load torch."""


class HostsCluster(Protocol):
    """Options that a cluster with several hosts has."""

    @property
    def encrypt(self) -> bool | None: ...
    @property
    def ports(self) -> range | None: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def device_word(self) -> str: ...
    @property
    def stragglers(self) -> Stragglers: ...


def new_terms(cluster: HostsCluster, *, spans_hosts: bool) -> dict[str, Any]:
    """Return the terms of one run, which its hub and its ranks share: id, encryption, token, ports."""
    encrypt = spans_hosts if cluster.encrypt is None else cluster.encrypt
    token = b"" if encrypt else secrets.token_bytes(16)
    run_id = secrets.token_bytes(RUN_ID_BYTES)
    return {"run_id": run_id, "encrypt": encrypt, "token": token, "ports": cluster.ports}


def pack(cluster: HostsCluster, job: Job, missing: Iterable[str], *, spans_hosts: bool) -> SharedMemory:
    """Pickle what the ranks need. The code of the user's `missing` modules is included."""
    assignment = Assignment(
        job=job,
        stragglers=cluster.stragglers,
        deadline_s=cluster.deadline_s,
        threads=cluster.threads,
        device=cluster.device_word,
    )
    with user_code(NOT_SENT), travelling_by_value(sorted(missing)):
        # Another host may not have the files that are mapped on this one.
        packed = Packed(assignment, files=not spans_hosts)
    packed.say_what_is_copied()
    memory = packed.store()
    memory.close_fd()
    return memory


def check_installed(answers: Sequence[tuple[str, int, dict[str, str | None]]]) -> None:
    """Refuse hosts that have other versions than the driver, before anything is used there."""
    ours = whereabouts().versions
    found = []
    for rank, (host_name, pid, versions) in enumerate(answers):
        lacking = [package for package, version in versions.items() if version is None]
        if lacking:
            remedy = f"install {lacking[0]} {ours[lacking[0]]} there, the version of the driver"
            raise RunError(f"rank {rank} on host {host_name} has no {lacking[0]}; {remedy}")
        known = {package: version or "" for package, version in versions.items()}
        found.append(Whereabouts(host="", host_name=host_name, pid=pid, versions=known))
    check_versions(found, ours)
