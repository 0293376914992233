"""Functions that run in the barrier tasks of a Spark job.

Their code is pickled by value, so that a host without paceline can report that paceline is missing. Nothing of paceline
is imported before that check, except the actor, which is pickled by value too.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paceline.clusters.hosts.actor import RankActor

if TYPE_CHECKING:
    from paceline.clusters.hosts.table import Member, Table


def survey(said: tuple[Any, ...]) -> Iterator[tuple[Any, Any, list[str]]]:
    """Yield the versions installed here, the location of this process, and the user's modules that differ here."""
    actor = RankActor()
    versions = actor.versions()
    if None in versions[2].values():
        yield versions, None, []
        return
    with _as_it_was():
        missing = actor.look(*said)
        yield versions, actor.settle(), missing


def take_part(said: tuple[Any, ...], payload: Any, terms: dict[str, Any]) -> Iterator[None]:
    """Run one rank to its end. Its results are sent to the run's hub."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    with _as_it_was():
        actor = RankActor()
        actor.look(*said)
        table = _meet(context, actor, payload, dict(terms))
        if table is not None:
            actor.work(table)
    yield from ()


def _meet(context: Any, actor: RankActor, payload: Any, terms: dict[str, Any]) -> Table | None:
    """Exchange the members of the run. None if the user's code failed on a rank."""
    from paceline.clusters.hosts.table import Table

    rank, hub, door = context.partitionId(), terms.pop("hub"), terms.pop("door")
    bind = _own_address(hub) if terms.pop("spans_hosts") else "127.0.0.1"
    hosts = _gather(context, actor.settle().host)
    leader = hosts.index(hosts[rank])
    stored = _gather(context, actor.keep(payload.value) if leader == rank else None)
    joined = actor.join(rank, *stored[leader], **terms, bind=bind)
    _read_rows(context, actor)
    answers = _gather(context, joined if isinstance(joined, dict) else _named(joined).to_values())
    if rank == 0:
        _tell_driver(door, terms["run_id"], answers)
    if any("address" not in answer for answer in answers):
        return None
    return Table(
        run_id=terms["run_id"],
        token=terms["token"],
        encrypt=terms["encrypt"],
        hub=hub,
        members=read_members(answers),
    )


def _read_rows(context: Any, actor: RankActor) -> None:
    """Map the rows that this rank has, if the data of the task is a table."""
    from paceline.clusters.hosts.table import whereabouts
    from paceline.clusters.spark.tables import StoredRows, own_folder

    job = actor.job
    places = _gather(context, [own_folder(), whereabouts().host])
    if job is not None and job.task is not None and isinstance(job.task.data, StoredRows):
        job.task.data.read(context.partitionId(), [tuple(place) for place in places[: job.workers]])


def read_members(answers: list[dict[str, Any]]) -> list[Member]:
    from paceline.clusters.hosts.table import Member

    return [Member.from_values(answer) for answer in answers]


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Restore the import path and the folder at the end: Spark uses the process for other tasks."""
    path, folder = list(sys.path), os.getcwd()
    try:
        yield
    finally:
        sys.path[:] = path
        os.chdir(folder)


def _gather(context: Any, value: Any) -> list[Any]:
    """Return the values of all ranks, in their order."""
    import msgpack

    texts = context.allGather(base64.b64encode(msgpack.packb(value)).decode())
    return [msgpack.unpackb(base64.b64decode(text), strict_map_key=False) for text in texts]


def _named(member: Member) -> Member:
    """Add the executor to the name of the host, for error messages."""
    executor = os.environ.get("SPARK_EXECUTOR_ID")
    found = re.search(r"executorId=([^&]+)", os.environ.get("SPARK_LOG_URL_STDOUT", ""))
    name = executor or (found[1] if found else "")
    where = member.where
    words = f"{where.host_name}, executor {name}" if name else where.host_name
    return dataclasses.replace(member, where=dataclasses.replace(where, host_name=words))


def _own_address(hub: Any) -> str:
    from paceline.links.tcp.address import address_towards

    return address_towards(hub.host, hub.port)


def _tell_driver(door: tuple[Any, bytes, float], run_id: bytes, answers: list[Any]) -> None:
    """Send the members to the driver, which cannot read the values of `allGather`."""
    from paceline.clusters.hosts.hub_client import HubConnection
    from paceline.links.tcp.handshake import Authenticator, Channel

    address, token, deadline_s = door
    credentials = Authenticator("0", run_id=run_id, token=token, encrypt=False)
    connection = HubConnection(0, credentials, address, Channel.ASK, deadline_s)
    connection.send("members", {"answers": answers})
    connection.close()
