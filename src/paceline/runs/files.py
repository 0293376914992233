"""The files of a saved run: run.json, history.jsonl, trace.json, spans.npz, model.safetensors."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from paceline.errors import ConfigurationError
from paceline.files.checksums import Checksum, check_seal, hash_file, read_file, seal
from paceline.files.reading import (
    Fields,
    Folder,
    checksum,
    list_of,
    mapping_of,
    number,
    optional,
    parse_json,
    seconds,
    text,
    whole,
)
from paceline.files.tensor_files import read_tensors, write_tensors
from paceline.runs.generation import Generation
from paceline.task.metrics import HIGHER, LOWER
from paceline.trace import Trace
from paceline.trace.spans import PASSES

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 3
"""Version of the format that `write_run` writes. Older versions can be read, newer ones are an error.

Since 2, run.json has the checksums of all files, and its own. Since 3, spans have message ids.
"""

MANIFEST = "run.json"

_RECORDS = "records"
"""Key of the number of records in the history. Older runs do not have it."""
_FILES = "files"
"""Key of the checksums of the files."""

OTHER_STATES = ("ema", "best")
"""Other model states. Each that is not empty has its own file."""

# Upper limits, larger than in any real run. They protect against malicious files that would exhaust the memory.
_MANIFEST_BYTES = 2**28
_HISTORY_BYTES = 2**30
_SPANS_BYTES = 2**33


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The content of a saved run."""

    manifest: Mapping[str, Any]
    """Figures and names, by the attribute of the run."""
    history: Iterable[Mapping[str, Any]]
    """One record for each step."""
    trace: Trace
    state: Mapping[str, Tensor]
    other_states: Mapping[str, Mapping[str, Tensor]]
    """Other states of the model by name (`OTHER_STATES`). A state that the run does not have is empty."""


def write_run(files: RunFiles, folder: Path) -> None:
    """Write the files into an empty folder."""
    history = [json.dumps(record) + "\n" for record in files.history]
    with open(folder / "history.jsonl", "w", encoding="utf-8") as out:
        out.writelines(history)
    files.trace.save(folder / "trace.json")
    arrays: dict[str, Any] = files.trace.to_arrays()
    np.savez_compressed(folder / "spans.npz", **arrays)
    sums = {name: _hash(folder / name) for name in ("history.jsonl", "trace.json", "spans.npz")}
    states = {"model": files.state, **{name: each for name, each in files.other_states.items() if each}}
    for name, state in states.items():
        with open(folder / f"{name}.safetensors", "xb") as tensors:
            sums[f"{name}.safetensors"] = write_tensors(tensors, state)
    manifest = {"format": FORMAT, **files.manifest, _RECORDS: len(history)}
    listed = {name: each.as_dict() for name, each in sums.items()}
    (folder / MANIFEST).write_bytes(seal({**manifest, _FILES: listed}))


def read_run(folder: Folder) -> RunFiles:
    """Read a run saved by `write_run`. Any defect raises a ConfigurationError that names the file."""
    fields, sums = read_manifest(folder)
    with folder.opened(MANIFEST):  # the error names the file if a value has the wrong type
        manifest, records = _manifest(fields), fields.get(_RECORDS, optional(whole), None)
        _check_lengths(manifest)
    with folder.opened("history.jsonl", most_bytes=_HISTORY_BYTES) as file:
        history = [_record(line) for line in _whole_file(file, sums.get("history.jsonl"))]
        if records is not None and len(history) != records:  # the file was truncated at the end of a line
            raise ValueError(f"it has {len(history)} records, but the run has {records}")
    with folder.opened("spans.npz") as file:
        trace = _trace(_whole_file(file, sums.get("spans.npz")))
        _check_ranks(trace, len(manifest["bytes_sent"]))
    with folder.opened("model.safetensors") as file:
        state = read_tensors(file, sums.get("model.safetensors")).tensors
        _check_names(manifest["trainable"], state)
    others = {name: _other_state(folder, f"{name}.safetensors", sums) for name in OTHER_STATES}
    return RunFiles(manifest=manifest, history=history, trace=trace, state=state, other_states=others)


def read_manifest(folder: Folder) -> tuple[Fields, Mapping[str, Checksum]]:
    """Return the values of run.json, and the checksum of each file. Runs of format 1 have no checksums."""
    if not folder.has(MANIFEST):
        remedy = "see Run.save"
        raise ConfigurationError("directory", "must hold a saved run (a run.json)", str(folder.path), remedy)
    with folder.opened(MANIFEST, most_bytes=_MANIFEST_BYTES) as file:
        content = file.read()
        fields = Fields(parse_json(content))
        version = fields.get("format", whole)
        sums = {}
        if version <= FORMAT and (version > 1 or fields.has(_FILES) or fields.has("sha256")):
            check_seal(content)
            sums = fields.get(_FILES, mapping_of(text, checksum))
    check_format(folder, version, FORMAT)
    return fields, sums


def _other_state(folder: Folder, name: str, sums: Mapping[str, Checksum]) -> dict[str, Tensor]:
    """Read another state; empty if the run has none. The file may belong to a run that was saved here earlier."""
    if name not in sums and (sums or not folder.has(name)):
        return {}
    with folder.opened(name) as file:
        return read_tensors(file, sums.get(name)).tensors


def _whole_file(file: BinaryIO, expected: Checksum | None) -> BinaryIO:
    return io.BytesIO(read_file(file, expected))


def _hash(path: Path) -> Checksum:
    with open(path, "rb") as file:
        return hash_file(file)


def check_format(folder: Folder, version: int, known: int) -> None:
    if version > known:
        remedy = f"read it with a newer Paceline ({folder.path})"
        raise ConfigurationError("directory", f"must be of format {known} or older", version, remedy)


def _manifest(fields: Fields) -> dict[str, Any]:
    return {
        "strategy": fields.get("strategy", text),
        "cluster": fields.get("cluster", text),
        "seed": fields.get("seed", whole),
        "seconds": fields.get("seconds", seconds),
        "bytes_sent": fields.get("bytes_sent", list_of(whole)),
        "messages_sent": fields.get("messages_sent", list_of(whole)),
        "memory": fields.get("memory", list_of(mapping_of(text, whole)), []),
        "holds": fields.get("holds", list_of(text), []),
        "staleness": fields.get("staleness", mapping_of(_rank, whole)),
        "skipped": fields.get("skipped", list_of(whole), []),
        "lost": fields.get("lost", list_of(_pair)),
        "generations": fields.get("generations", list_of(_generation), []),
        "peer_metrics": fields.get("peer_metrics", mapping_of(_rank, number), {}),
        "target": fields.get("target", optional(number)),
        "better": fields.get("better", _better, HIGHER),
        "fingerprint": fields.get("fingerprint", mapping_of(text, text), {}),
        "best_metric": fields.get("best_metric", optional(number), None),
        "other_metrics": fields.get("other_metrics", list_of(text), []),
        "environment": fields.get("environment", mapping_of(text, text), {}),
        "trainable": fields.get("trainable", list_of(_name)),
    }


def _check_lengths(manifest: Mapping[str, Any]) -> None:
    """Check that lists by rank have one entry for each rank, or none."""
    ranks = len(manifest["bytes_sent"])
    for name in ("memory", "holds", "skipped"):
        if len(manifest[name]) not in (0, ranks):
            raise ValueError(f"{name} must have {ranks} ranks, but has {len(manifest[name])}")


def _better(value: object) -> str:
    if value not in (HIGHER, LOWER):
        raise ValueError(f"must be {HIGHER} or {LOWER}, but got {value!r}"[:200])
    return text(value)


def _rank(key: object) -> int:
    """Return a rank from a JSON key, which is a string."""
    return whole(int(text(key)))


def _pair(value: object) -> tuple[int, int]:
    rank, step = list_of(whole)(value)
    return rank, step


def _generation(value: object) -> Generation:
    fields = Fields(mapping_of(text, lambda each: each)(value))
    return Generation(
        number=fields.get("number", whole),
        members=tuple(fields.get("members", list_of(whole))),
        first_step=fields.get("first_step", whole),
        lost=tuple(fields.get("lost", list_of(whole))),
        repeated_steps=fields.get("repeated_steps", whole, 0),
        joined=tuple(fields.get("joined", list_of(whole), [])),
        detected_s=fields.get("detected_s", number),
        began_s=fields.get("began_s", number),
    )


def _name(value: object) -> str:
    """Return the name of a parameter unchanged, because it must match the model."""
    text(value)
    return str(value)


def _record(line: bytes) -> dict[str, Any]:
    fields = Fields(parse_json(line))
    return {
        "step": fields.get("step", whole),
        "seconds": fields.get("seconds", number),
        "loss": fields.get("loss", optional(number)),
        "metric": fields.get("metric", optional(number)),
        "samples": fields.get("samples", whole),
        "bytes": fields.get("bytes", whole),
        "extra": fields.get("extra", mapping_of(text, number), {}),
        "epoch": fields.get("epoch", optional(number), None),
    }


def _trace(file: BinaryIO) -> Trace:
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > _SPANS_BYTES:
        raise ValueError(f"it must unpack to at most {_SPANS_BYTES:,} bytes, but unpacks to {unpacked:,}")
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return Trace.from_arrays(arrays)


def _check_ranks(trace: Trace, ranks: int) -> None:
    """Check the ranks in a trace. Readers allocate arrays by rank, so a wrong number could exhaust the memory."""
    for each in trace.spans:
        others = each.array[~np.isin(each.array["kind"], PASSES)]  # the peer of a pass is a micro-batch
        highest = max(each.rank, int(others["peer"].max(initial=-1)))
        if highest >= ranks:
            raise ValueError(f"it has spans of rank {highest}, but the run has {ranks} ranks")


def _check_names(trainable: Sequence[str], state: Mapping[str, Tensor]) -> None:
    missing = [name for name in trainable if name not in state]
    if state and missing:
        raise ValueError(f"the trainable parameter {missing[0][:80]!r} is not in it")
