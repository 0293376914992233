"""Messages of a rank to its driver: texts, numbers and blobs of bytes. Nothing in them is unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor

from paceline import errors
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.process.channel import decode, encode
from paceline.clusters.rank.failures import failure_of
from paceline.errors import RunError
from paceline.runs.run import Record
from paceline.trace import Spans

_TUPLES = ("losses", "logged", "bytes_over_time", "lost")


def write_outcome(outcome: Outcome) -> tuple[dict[str, Any], list[Any]]:
    """Return the values and blobs of a message with a rank's outcome."""
    blobs: list[Any] = []
    values = {f.name: getattr(outcome, f.name) for f in fields(outcome) if f.name != "spans"}
    body = encode(values, blobs)
    return {"body": body}, [*blobs, outcome.spans.to_bytes() if outcome.spans is not None else b""]


def read_outcome(values: dict[str, Any], blobs: Sequence[bytearray]) -> Outcome:
    found = decode(values["body"], blobs)
    for name in _TUPLES:
        found[name] = [tuple(entry) for entry in found[name]]
    return Outcome(**found, spans=Spans.from_bytes(bytes(blobs[-1])) if blobs[-1] else None)


def write_outcomes(outcomes: Sequence[Outcome]) -> tuple[dict[str, Any], list[Any]]:
    """Return one message with the outcomes of all ranks."""
    written = [write_outcome(outcome) for outcome in outcomes]
    values = [{**each, "blobs": len(blobs)} for each, blobs in written]
    return {"outcomes": values}, [blob for _, blobs in written for blob in blobs]


def read_outcomes(values: dict[str, Any], blobs: Sequence[bytearray]) -> list[Outcome]:
    outcomes, rest = [], list(blobs)
    for each in values["outcomes"]:
        outcomes.append(read_outcome(each, rest[: each["blobs"]]))
        rest = rest[each["blobs"] :]
    return outcomes


def write_record(record: dict[str, Any], state: dict[str, Tensor] | None) -> tuple[dict[str, Any], list[Any]]:
    """Return the values and blobs of a message with a record and the model state."""
    blobs: list[Any] = []
    return {"record": encode(record, blobs), "state": encode(state, blobs)}, blobs


def read_record(
    values: dict[str, Any], blobs: Sequence[bytearray]
) -> tuple[Record, dict[str, Tensor] | None]:
    return Record(**decode(values["record"], blobs)), decode(values["state"], blobs)


def write_error(rank: int, step: int, error: BaseException) -> dict[str, Any]:
    """Return the values of a message about the error that ended a rank's program."""
    failure = failure_of(rank, step, error)
    holds = list(failure.holds.items()) if isinstance(failure, RunError) else []
    return {"type": type(failure).__name__, "args": _plain(failure.args), "step": step, "holds": holds}


def read_error(values: dict[str, Any]) -> RunError:
    kind: Any = getattr(errors, values["type"], RunError)
    error: RunError = kind(*values["args"])
    error.holds = dict(values["holds"])
    return error


def _plain(args: tuple[Any, ...]) -> list[Any]:
    return [a if isinstance(a, (int, float, str, list, type(None))) else str(a) for a in args]
