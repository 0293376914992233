"""A run of processes that were launched together. They meet at PyTorch's store, which has the address of the hub.

The values in the store are public: addresses, public keys, versions. Without encryption the run's token is also in the
store. Use this mode in trusted networks only.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.checkpoints import Store
from paceline.checkpoints.plan import CheckpointPlan
from paceline.clusters.base.job import Consult, Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.hosts.hub import Hub
from paceline.clusters.hosts.rank import Assignment, OpenContext, RankProcess
from paceline.clusters.hosts.table import (
    Member,
    Table,
    check_versions,
    read_whereabouts,
    whereabouts,
)
from paceline.clusters.launched.meeting import Meeting, own_address
from paceline.clusters.process.letters import read_error, read_outcomes
from paceline.errors import ConfigurationError, PeerLost
from paceline.links.tcp import RUN_ID_BYTES, PeerAddress
from paceline.runs.run import Progress

if TYPE_CHECKING:
    from paceline.clusters.launched.launched import Launched

_log = logging.getLogger("paceline")

_LOOPBACK = "127.0.0.1"
_JOIN_S = 0.5
_numbers = itertools.count()  # every process starts its runs in the same order


class LaunchedRun:
    """One process's part in a run."""

    def __init__(self, cluster: Launched, job: Job, open_context: OpenContext | None = None) -> None:
        """`open_context` is as in `RankProcess`."""
        self._cluster = cluster
        self._open_context = open_context
        self._job = job
        self._place = place = cluster.place
        if job.ranks != place.ranks:
            remedy = "launch this number, or choose another strategy"
            raise ConfigurationError(
                "processes", f"must be {job.ranks} for this strategy", place.ranks, remedy
            )
        self._meeting = Meeting(place, next(_numbers), cluster.deadline_s)

    def work(
        self, progress: Callable[[Progress], None] | None, consult: Consult | None = None
    ) -> list[Outcome]:
        """Run to the end. Every process returns the same outcomes, or raises the same error."""
        rank, meeting = self._place.rank, self._meeting
        where = meeting.exchange("where", {**_values(whereabouts()), "address": own_address(self._place)})
        meeting.close_door()
        places = [read_whereabouts({k: v for k, v in each.items() if k != "address"}) for each in where]
        check_versions(places, places[0].versions)
        spans_hosts = len({place.host for place in places}) > 1
        encrypt = spans_hosts if self._cluster.encrypt is None else self._cluster.encrypt
        run = meeting.from_first("run", lambda: _new_run(encrypt=encrypt))
        if self._job.checkpointing is not None:
            self._keep_together(self._job.checkpointing)
        bind = where[rank]["address"] if spans_hosts else _LOOPBACK
        process = RankProcess(
            rank,
            **run,
            encrypt=encrypt,
            bind=bind,
            ports=self._cluster.ports,
            open_context=self._open_context,
        )
        hub = self._open_hub(run, encrypt, bind) if rank == 0 else None
        address = meeting.from_first("hub", lambda: hub.address.to_values() if hub else {})
        members = [
            Member.from_values(each) for each in meeting.exchange("member", process.member.to_values())
        ]
        table = Table(**run, encrypt=encrypt, hub=PeerAddress.from_values(address), members=members)
        middle = _Middle(hub, table, progress, consult) if hub is not None else None
        return self._take_part(process, middle, table)

    def _keep_together(self, plan: CheckpointPlan) -> None:
        """Make all ranks write to the same checkpoint folder and resume from the same checkpoint.

        The first rank selects both.
        """
        job, store = self._job, plan.store
        own = {"attempt": store.attempt, "first": job.generations.first, "resumed": str(plan.resumed or "")}
        first = self._meeting.from_first("checkpointing", lambda: own | {"refused": self._refusal(store)})
        if first["refused"]:
            raise ConfigurationError(*first["refused"])
        plan = dataclasses.replace(
            plan,
            store=dataclasses.replace(store, attempt=first["attempt"]),
            resumed=Path(first["resumed"]) if first["resumed"] else None,
        )
        generations = dataclasses.replace(job.generations, first=first["first"])
        self._job = dataclasses.replace(job, checkpointing=plan, generations=generations)

    def _refusal(self, store: Store) -> list[str]:
        """On the first rank, lock and open the folder. Return the arguments of the error if that fails, else an empty
        list."""
        try:
            store.lock(self._place.launch_id)
            store.begin(self._job.generations.first)
        except ConfigurationError as error:
            return [error.argument, error.bound, str(error.value), error.remedy]
        return []

    def _open_hub(self, run: dict[str, Any], encrypt: bool, bind: str) -> Hub:
        cluster = self._cluster
        return Hub(
            self._job,
            **run,
            bind=bind,
            encrypt=encrypt,
            deadline_s=cluster.deadline_s,
            ports=cluster.ports,
        )

    def _take_part(self, process: RankProcess, middle: _Middle | None, table: Table) -> list[Outcome]:
        cluster = self._cluster
        assignment = Assignment(
            job=self._job,
            stragglers=cluster.stragglers,
            deadline_s=cluster.deadline_s,
            threads=cluster.threads,
            device=cluster.device,
            only_tcp=cluster.link == "tcp",
        )
        try:
            parting = process.work(assignment, table)
        finally:
            if middle is not None:
                middle.end(cluster.deadline_s)
                if self._job.checkpointing is not None:
                    self._job.checkpointing.store.end()
        if parting is None:
            raise PeerLost(0, "the run's hub is in its process", "no more messages arrived from it")
        if "error" in parting.values:
            raise read_error(parting.values["error"])
        return read_outcomes(parting.values, parting.blobs)


class _Middle:
    """The run's hub, in a thread of the first rank's process. It informs all ranks, including its own."""

    def __init__(
        self,
        hub: Hub,
        table: Table,
        progress: Callable[[Progress], None] | None,
        consult: Consult | None,
    ) -> None:
        self._hub = hub
        called = (table, progress, consult)
        self._thread = threading.Thread(target=self._work, args=called, name="hub", daemon=True)
        self._thread.start()

    def _work(
        self, table: Table, progress: Callable[[Progress], None] | None, consult: Consult | None
    ) -> None:
        try:
            self._hub.work(table, self, progress, consult, share=True)
        except Exception as error:
            self._hub.give_up(error)  # the rank of this process receives it like all others
        finally:
            self._hub.close()

    def losses(self) -> Iterable[tuple[int, str]]:
        return ()  # a launcher reports no lost ranks; a rank that is silent for too long counts as lost

    def end(self, deadline_s: float) -> None:
        """Stop the hub. If the thread makes no progress for `deadline_s`, it ends with the process."""
        self._hub.stop()
        while self._thread.is_alive():
            self._thread.join(_JOIN_S)
            if time.monotonic() - self._hub.active_s > deadline_s and self._thread.is_alive():
                _log.warning(
                    "rank 0 waited %g s for the thread of the run's hub, which is still closing its connections; "
                    "the run is over, and the thread ends with the process",
                    deadline_s,
                )
                return


def _new_run(*, encrypt: bool) -> dict[str, Any]:
    return {"run_id": secrets.token_bytes(RUN_ID_BYTES), "token": b"" if encrypt else secrets.token_bytes(16)}


def _values(thing: Any) -> dict[str, Any]:
    return asdict(thing)
