"""A folder of checkpoints. Many ranks write into it, and it stays consistent whenever they are killed.

Ranks write into a hidden folder, `.step-00000100-ATTEMPT`. When all have finished, the reporter writes the manifest
there and renames the folder to `step-00000100`. This one rename publishes the complete checkpoint. A checkpoint is
renamed to a hidden name before it is removed, so a visible checkpoint is never partial. An attempt is one start of the
run. Files of earlier attempts have other names, even if a process of that attempt is still writing.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from paceline.checkpoints.checkpoint import Checkpoint
from paceline.checkpoints.lock import check_unlocked, lock_folder, unlock_folder
from paceline.checkpoints.receipts import (
    check_no_failure,
    leave_failure,
    leave_receipt,
    remove_receipts,
    wait_for_receipts,
)
from paceline.checkpoints.shard import Shard, file_name, write_shard
from paceline.errors import ConfigurationError, DamagedError, SaveError
from paceline.files.writing import save_errors, to_disk, write_file
from paceline.task.metrics import HIGHER, LOWER

_STEP = re.compile(r"step-(\d{8,})")
_LEFT_OVER = re.compile(r"\.(?:step|removed)-(\d{8,})-[0-9a-f]+|\.attempt-[0-9a-f]+|\.saving-[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of checkpoints. It can be sent to other processes. All ranks of a run must use the driver's store."""

    folder: Path
    _: KW_ONLY
    keep: int = 2
    """Number of recent checkpoints to keep."""
    keep_best: bool = False
    """Whether to keep the checkpoint with the best metric too."""
    better: str = HIGHER
    """Whether a higher or a lower metric is better."""
    attempt: str = field(default_factory=lambda: secrets.token_hex(4))
    """Identifies this launch of the run. Files of other launches are never used."""
    generation: int = 0
    """Generation of members that writes. Files of other generations are never used: their ranks have other shards."""

    def __post_init__(self) -> None:
        # A rank may have another working directory.
        object.__setattr__(self, "folder", Path(os.path.abspath(self.folder)))
        if type(self.keep) is not int or self.keep < 1:
            raise ConfigurationError("keep", "must be a whole number of at least 1", self.keep)
        if self.better not in (HIGHER, LOWER):
            raise ConfigurationError("better", f"must be {HIGHER} or {LOWER}", self.better)

    # At the start of a run

    def check_writable(self) -> None:
        """Refuse a folder in which no checkpoint could be written. Create the folder if it does not exist."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(self._token, b"")
            self._token.unlink()
        except OSError as error:
            remedy = f"use another folder ({error.strerror or error})"
            bound = "must be a writable folder"
            raise ConfigurationError("checkpoint", bound, str(self.folder), remedy) from error

    def lock(self, launch: str = "") -> None:
        """Refuse a folder that another run writes to. For the driver, before it looks for a checkpoint.

        `launch` is the same text in all processes that were launched together.
        """
        lock_folder(self.folder, self.attempt, launch)

    def check_unlocked(self, launch: str) -> None:
        """Refuse a folder that another run writes to.

        For each process of a launch, before the first of them locks.
        """
        check_unlocked(self.folder, launch)

    def unlock(self) -> None:
        """Release the lock. For the driver, after the run. If the driver is killed, the system releases the lock."""
        unlock_folder(self.attempt)

    def begin(self, step: int) -> None:
        """Prepare the folder for a run that continues from this step. For the driver, before its ranks start.

        Remove files of killed writers, and checkpoints of later steps (also damaged ones). This run writes those steps
        again.
        """
        self.check_writable()
        with save_errors(self.folder):
            for name in os.listdir(self.folder):
                if _LEFT_OVER.fullmatch(name):
                    _remove(self.folder / name)
            for later in [each for each in self.steps() if each > step]:
                self._discard(later)
            self._token.touch()

    def check_shared(self) -> None:
        """Check that this folder is the driver's folder. For a rank, before training."""
        if not self._token.exists():
            remedy = "use a path that all hosts share"
            bound = "must be a folder that the driver and all ranks see"
            raise ConfigurationError("checkpoint", bound, str(self.folder), remedy)

    def end(self) -> None:
        """Clean up. For the driver, when its ranks have ended."""
        self._token.unlink(missing_ok=True)

    # While it runs

    def write(self, step: int, shard: Shard) -> None:
        """Write a rank's file, sync it to disk, and leave a receipt. For each rank.

        Raise SaveError if this fails, or if another rank has already failed.
        """
        place = self._under_way(step)
        try:
            with save_errors(place / file_name(shard.rank)):
                place.mkdir(exist_ok=True)
                check_no_failure(place)
                leave_receipt(place, shard.rank, write_shard(place, shard))
        except SaveError as error:
            self.skip(step, shard.rank, str(error.strerror))
            raise

    def skip(self, step: int, rank: int, reason: str) -> None:
        """Record that a rank does not write its file, so that the reporter does not wait and others do not write."""
        with contextlib.suppress(OSError):
            self._under_way(step).mkdir(exist_ok=True)
            leave_failure(self._under_way(step), rank, reason)

    def abandon(self, step: int) -> None:
        """Remove an unfinished checkpoint, so that a full disk has room again. For the reporter."""
        shutil.rmtree(self._under_way(step), ignore_errors=True)

    def commit(self, step: int, ranks: int, facts: Mapping[str, Any], *, deadline_s: float) -> Checkpoint:
        """Wait for the files of all ranks, finish the checkpoint, and remove old ones. For the reporter.

        `facts` describes the whole run; `facts["metric"]` is the last evaluated metric. Raise SaveError if a rank could
        not write, or did not write by the deadline. Existing checkpoints are then unchanged.
        """
        place, final = self._under_way(step), self.folder / _name(step)
        try:
            with save_errors(final):
                shards = wait_for_receipts(place, ranks, deadline_s)
                found = Checkpoint(
                    folder=place,
                    step=step,
                    facts=facts,
                    metric=facts.get("metric"),
                    saved_s=time.time(),
                    shards=shards,
                )
                remove_receipts(place)
                found.write_manifest()
                self._check_newest_attempt()
                if final.exists():
                    self._discard(step)
                place.rename(final)
                to_disk(self.folder)
        except BaseException:
            self.abandon(step)
            raise
        with contextlib.suppress(OSError):  # the new checkpoint is complete; old ones are removed next time
            self._prune(step)
        return Checkpoint.open(final)

    def _check_newest_attempt(self) -> None:
        """Stop a reporter that has outlived its killed driver: it must not interfere with the next attempt."""
        if any(self.folder.glob(".attempt-*")) and not self._token.exists():
            raise OSError(None, "another run has begun in this folder")

    # Afterwards

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints with an intact manifest, oldest first, without reading their files."""
        found = []
        for step in self.steps():
            with contextlib.suppress(DamagedError):
                found.append(self._open(step))
        return found

    def newest(self, *, good: bool = False, until: int | None = None) -> Checkpoint | None:
        """Return the newest checkpoint up to step `until`, with every byte verified; None if there is none.

        Raise DamagedError if it is damaged. The error names the file and the newest intact checkpoint before it. With
        `good=True` return that one instead, or raise the error if none is intact.
        """
        found, damage = self.newest_good(until)
        if damage is not None and not (good and found):
            raise damage
        return found

    def newest_good(self, until: int | None = None) -> tuple[Checkpoint | None, DamagedError | None]:
        """Return the newest intact checkpoint and, if a newer one is damaged, the error that `newest` raises."""
        damage: DamagedError | None = None
        for step in reversed([each for each in self.steps() if until is None or each <= until]):
            try:
                found = self._verified(step)
            except DamagedError as error:
                damage = damage or error
            else:
                return found, damage and _offering(damage, step)
        return None, damage and _offering(damage, None)

    def unfinished(self, after: int) -> list[Path]:
        """Return the folders of later checkpoints that were unfinished when their run was killed."""
        names = sorted(os.listdir(self.folder)) if self.folder.is_dir() else []
        found = ((name, _LEFT_OVER.fullmatch(name)) for name in names if name.startswith(".step-"))
        return [self.folder / name for name, left in found if left and int(left[1]) > after]

    def _verified(self, step: int) -> Checkpoint:
        found = self._open(step)
        found.verify()
        return found

    def _open(self, step: int) -> Checkpoint:
        return Checkpoint.open(self.folder / _name(step))

    def place_of(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        return self.folder / _name(step)

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, oldest first, including damaged ones.

        A folder gets its name after its manifest is on disk. A folder without a manifest is therefore damaged.
        """
        places = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(
            step for place in places if (step := step_of(place.name)) is not None and place.is_dir()
        )

    def _prune(self, step: int) -> None:
        """Remove checkpoints that are neither recent nor the best, and the rest of failed checkpoints."""
        found = {each.step: each for each in self.checkpoints()}
        kept = {*list(found)[-self.keep :]}
        rated = [each for each in found.values() if each.metric is not None]
        if self.keep_best and rated:
            sign = 1 if self.better == HIGHER else -1
            kept.add(max(rated, key=lambda each: (sign * (each.metric or 0.0), each.step)).step)
        for each in self.steps():
            if each not in kept:
                self._discard(each)
        for name in os.listdir(self.folder):
            left = _LEFT_OVER.fullmatch(name)
            if left and left[1] and int(left[1]) <= step:
                _remove(self.folder / name)

    def _discard(self, step: int) -> None:
        hidden = self.folder / f".removed-{step:08}-{secrets.token_hex(4)}"
        (self.folder / _name(step)).rename(hidden)
        _remove(hidden)

    def _under_way(self, step: int) -> Path:
        generation = f"{self.generation:04x}" if self.generation else ""
        return self.folder / f".{_name(step)}-{self.attempt}{generation}"

    @property
    def _token(self) -> Path:
        return self.folder / f".attempt-{self.attempt}"


def step_of(name: str) -> int | None:
    """Return the step in a checkpoint folder's name; None for any other folder."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def _name(step: int) -> str:
    return f"step-{step:08}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _offering(error: DamagedError, whole: int | None) -> DamagedError:
    """Return the same error with a remedy."""
    remedy = "no checkpoint is intact: start again in another folder"
    if whole is not None:
        remedy = f'the checkpoint of step {whole} before it is intact: resume="newest-good" uses it'
    return DamagedError(error.folder, error.file, error.reason, remedy)
