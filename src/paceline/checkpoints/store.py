"""A folder of checkpoints, which many ranks write into, and which is whole whenever they are killed.

Ranks write into a hidden folder, `.step-00000100-ATTEMPT`. When all have, the reporter puts the manifest there and
renames the folder to `step-00000100`: by this one rename the checkpoint is there, whole. What is removed is renamed to
a hidden name first, so a checkpoint that can be seen is never half there. An attempt is one start of the run: whatever
an earlier one left, or still writes because it was not killed at once, is under another name.
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

from paceline.checkpoints.checkpoint import MANIFEST, Checkpoint
from paceline.checkpoints.receipts import (
    check_no_failure,
    leave_failure,
    leave_receipt,
    remove_receipts,
    wait_for_receipts,
)
from paceline.checkpoints.shard import Shard, file_name, write_shard
from paceline.errors import ConfigurationError, DamagedError, SaveError
from paceline.metrics import HIGHER, LOWER
from paceline.writing import save_errors, to_disk, write_file

__all__ = ["Store", "step_of"]

_STEP = re.compile(r"step-(\d{8,})")
_LEFT_OVER = re.compile(r"\.(?:step|removed)-(\d{8,})-[0-9a-f]+|\.attempt-[0-9a-f]+|\.saving-[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of checkpoints. It can be sent to other processes: all ranks of a run must have the driver's."""

    folder: Path
    _: KW_ONLY
    keep: int = 2
    """The last so many stay."""
    keep_best: bool = False
    """The one with the best metric stays too."""
    better: str = HIGHER
    """Which way the metric is better."""
    attempt: str = field(default_factory=lambda: secrets.token_hex(4))
    """Which start of the run this is: what other attempts left is never taken for this one's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(os.path.abspath(self.folder)))  # a rank may stand elsewhere
        if type(self.keep) is not int or self.keep < 1:
            raise ConfigurationError("keep", "must be a whole number of at least 1", self.keep)
        if self.better not in (HIGHER, LOWER):
            raise ConfigurationError("better", f"must be {HIGHER} or {LOWER}", self.better)

    # At the start of a run

    def check_writable(self) -> None:
        """Refuse at once a folder in which no checkpoint could be written. It is made if it is not there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(self._token, b"")
            self._token.unlink()
        except OSError as error:
            remedy = f"name another ({error.strerror or error})"
            bound = "must be a folder that can be written"
            raise ConfigurationError("checkpoint", bound, str(self.folder), remedy) from error

    def begin(self, step: int) -> None:
        """For the driver, before its ranks start: the run goes on from this step.

        Removes what killed writers left, and checkpoints of later steps (damaged ones, if any), which this run will
        come to once more.
        """
        self.check_writable()
        with save_errors(self.folder):
            for name in os.listdir(self.folder):
                if _LEFT_OVER.fullmatch(name):
                    _remove(self.folder / name)
            for later in [each for each in self._steps() if each > step]:
                self._discard(later)
            self._token.touch()

    def check_shared(self) -> None:
        """For a rank, before the training: this folder is the one that the driver began in."""
        if not self._token.exists():
            remedy = "name a path that all hosts share"
            bound = "must be a folder that the driver and all ranks see"
            raise ConfigurationError("checkpoint", bound, str(self.folder), remedy)

    def end(self) -> None:
        """For the driver, when its ranks have ended."""
        self._token.unlink(missing_ok=True)

    # While it runs

    def write(self, step: int, shard: Shard) -> None:
        """For each rank: write its file, bring it to the disk, and leave a receipt.

        SaveError: it could not be done; or it would be in vain, because another rank has failed already.
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
        """For a rank that does not write its file: the reporter need not wait for it, and the others need not write."""
        with contextlib.suppress(OSError):
            self._under_way(step).mkdir(exist_ok=True)
            leave_failure(self._under_way(step), rank, reason)

    def abandon(self, step: int) -> None:
        """For the reporter: there will be no checkpoint of this step. A full disk has room again."""
        shutil.rmtree(self._under_way(step), ignore_errors=True)

    def commit(self, step: int, ranks: int, facts: Mapping[str, Any], *, deadline_s: float) -> Checkpoint:
        """For the reporter: wait for the files of all ranks, and make them a checkpoint. Old ones are removed then.

        `facts` is of the whole run; `facts["metric"]` is the metric as last evaluated. SaveError: a rank could not
        write, or has not by the deadline; those checkpoints that are there stay as they are.
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
        with contextlib.suppress(OSError):  # the new one is there; the old ones are tried again next time
            self._prune(step)
        return Checkpoint.open(final)

    def _check_newest_attempt(self) -> None:
        """A reporter whose driver was killed may live on for a while, and must not interfere with the next attempt."""
        if any(self.folder.glob(".attempt-*")) and not self._token.exists():
            raise OSError(None, "another run has begun in this folder")

    # Afterwards

    def checkpoints(self) -> list[Checkpoint]:
        """Those whose manifest is whole, oldest first. Their files are not looked at."""
        found = []
        for step in self._steps():
            with contextlib.suppress(DamagedError):
                found.append(self._open(step))
        return found

    def newest(self, *, good: bool = False) -> Checkpoint | None:
        """The newest checkpoint, every byte of it verified; None if there is none.

        DamagedError: it is damaged; names the file, and the newest one before it that is whole. With `good=True`, that
        one is taken instead; if none is whole, it is an error all the same.
        """
        found, damage = self.newest_good()
        if damage is not None and not (good and found):
            raise damage
        return found

    def newest_good(self) -> tuple[Checkpoint | None, DamagedError | None]:
        """The newest checkpoint that is whole; and, if a newer one is damaged, the error that `newest` raises."""
        damage: DamagedError | None = None
        for step in reversed(self._steps()):
            try:
                found = self._verified(step)
            except DamagedError as error:
                damage = damage or error
            else:
                return found, damage and _offering(damage, step)
        return None, damage and _offering(damage, None)

    def _verified(self, step: int) -> Checkpoint:
        found = self._open(step)
        found.verify()
        return found

    def _open(self, step: int) -> Checkpoint:
        return Checkpoint.open(self.folder / _name(step))

    def _steps(self) -> list[int]:
        """Of all checkpoints, damaged ones too. A folder without a manifest is none."""
        if not self.folder.is_dir():
            return []
        steps = [step for name in os.listdir(self.folder) if (step := step_of(name)) is not None]
        return [step for step in sorted(steps) if os.path.lexists(self.folder / _name(step) / MANIFEST)]

    def _prune(self, step: int) -> None:
        """Remove what is neither among the last nor the best, and what is left of checkpoints that failed."""
        found = {each.step: each for each in self.checkpoints()}
        kept = {*list(found)[-self.keep :]}
        rated = [each for each in found.values() if each.metric is not None]
        if self.keep_best and rated:
            sign = 1 if self.better == HIGHER else -1
            kept.add(max(rated, key=lambda each: (sign * (each.metric or 0.0), each.step)).step)
        for each in self._steps():
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
        return self.folder / f".{_name(step)}-{self.attempt}"

    @property
    def _token(self) -> Path:
        return self.folder / f".attempt-{self.attempt}"


def step_of(name: str) -> int | None:
    """The step of a checkpoint's folder, by its name; None if it is another folder."""
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
    """The same, with what can be done about it."""
    remedy = "none of the checkpoints is whole: begin anew in another folder"
    if whole is not None:
        remedy = f'step {whole}, before it, is whole: resume="newest-good" takes it'
    return DamagedError(error.folder, error.file, error.reason, remedy)
