"""Saved runs and checkpoints below a folder: their progress, and whether they are complete.

Only `model_of` needs torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.checkpoints import Checkpoint, Store
from paceline.checkpoints.checkpoint import MANIFEST
from paceline.checkpoints.model_state import model_state
from paceline.checkpoints.store import step_of
from paceline.errors import ConfigurationError, DamagedError
from paceline.files.reading import Folder, mapping_of, number, optional, text, whole
from paceline.runs.files import MANIFEST as RUN_MANIFEST
from paceline.runs.files import read_manifest, read_run
from paceline.runs.metric_name import metric_name_in

if TYPE_CHECKING:
    from torch import Tensor

RUN, CHECKPOINT = "run", "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A run or a checkpoint on disk."""

    folder: Path
    kind: str
    """`RUN` or `CHECKPOINT`."""
    nbytes: int
    """Total size of the files present."""
    age_s: float
    step: int | None = None
    """Completed steps. None if unreadable."""
    metric: float | None = None
    metric_name: str = "metric"
    is_whole: bool | None = None
    """Whether all files match their checksums. None if there are no checksums, as in runs of format 1."""
    problem: str = ""
    """The damage, and the file that has it. Empty if there is none."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "step": self.step,
            "metric": self.metric,
            "metric_name": self.metric_name,
            "bytes": self.nbytes,
            "age_s": self.age_s,
            "whole": self.is_whole,
            "problem": self.problem,
        }


def saved_in(folder: Path, *, verify: bool = True) -> Iterator[Saved]:
    """Yield all runs and checkpoints in a folder and its subfolders. Symbolic links and hidden folders are skipped.

    Every file is read to verify its checksum. Without `verify`, only sizes are checked.
    """
    if not folder.is_dir():
        raise ConfigurationError("DIR", "must be a folder", str(folder), "give a folder with saved runs")
    for path, inner, _ in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        place = Path(path)
        if Folder(place).has(RUN_MANIFEST):
            yield _run(place, verify)
        if step_of(place.name) is not None and _was_checkpoint(place):
            inner.clear()
            yield _checkpoint(place, verify)


def _was_checkpoint(place: Path) -> bool:
    """Return whether the folder has files of a checkpoint. A checkpoint without its manifest is damaged."""
    return os.path.lexists(place / MANIFEST) or any(place.glob("rank-*.safetensors"))


def _run(place: Path, verify: bool) -> Saved:
    folder = Folder(place)
    found: dict[str, Any] = {}
    try:
        fields, sums = read_manifest(folder)
        with folder.opened(RUN_MANIFEST):
            found["step"] = fields.get("steps", optional(whole), None)
            found["metric"] = fields.get("metric", optional(number), None)
            found["metric_name"] = metric_name_in(fields.get("fingerprint", mapping_of(text, text), {}))
        for name, checksum in sums.items():
            (folder.verify if verify else folder.verify_size)(name, checksum)
        found["is_whole"] = True if sums else None
    except ConfigurationError as error:
        found |= _trouble(error)
    return Saved(folder=place, kind=RUN, nbytes=_bytes_in(place), age_s=_age_s(place / RUN_MANIFEST), **found)


def _checkpoint(place: Path, verify: bool) -> Saved:
    found: dict[str, Any] = {"step": step_of(place.name)}
    try:
        checkpoint = Checkpoint.open(place)
        found["metric"] = checkpoint.metric
        found["metric_name"] = metric_name_in(checkpoint.facts.get("task", {}))
        (checkpoint.verify if verify else checkpoint.verify_sizes)()
        found["is_whole"] = True
    except ConfigurationError as error:
        found |= _trouble(error)
    return Saved(
        folder=place, kind=CHECKPOINT, nbytes=_bytes_in(place), age_s=_age_s(place / MANIFEST), **found
    )


def _trouble(error: ConfigurationError) -> dict[str, Any]:
    problem = f"{error.file}: {error.reason}" if isinstance(error, DamagedError) else str(error)
    return {"is_whole": False, "problem": problem}


def _bytes_in(place: Path) -> int:
    return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(place) if entry.is_file())


def _age_s(path: Path) -> float:
    """Return the age by the file's modification time."""
    try:
        return max(0.0, time.time() - path.lstat().st_mtime)
    except OSError:  # it may still be in .saved
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model loaded from a run or a checkpoint."""

    state: dict[str, Tensor]
    source: Path
    """The folder of this run or checkpoint."""
    skipped: str = ""
    """A newer checkpoint that is damaged, with the damaged file. Empty if there is none."""


def model_of(folder: Path) -> Model:
    """Return the state dict of a run, of a checkpoint, or of the newest intact checkpoint in a folder."""
    if Folder(folder).has(RUN_MANIFEST):
        return Model(state=dict(read_run(Folder(folder)).state), source=folder)
    if os.path.lexists(folder / MANIFEST):
        return Model(state=model_state(Checkpoint.open(folder)), source=folder)
    store = Store(folder)
    newest, damage = store.newest_good()
    if newest is None:
        remedy = "give the folder of a run (run.save, --out) or of checkpoints (checkpoint=…)"
        raise ConfigurationError("DIR", "must hold a run or a checkpoint", str(folder), remedy)
    skipped = f"{damage.folder}: {damage.file}: {damage.reason}" if damage is not None else ""
    return Model(state=model_state(newest), source=newest.folder, skipped=skipped)
