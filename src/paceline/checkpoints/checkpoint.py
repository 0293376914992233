"""A finished checkpoint: a folder with one file for each rank, and a manifest with their checksums."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoints.shard import Shard, file_name, read_shard
from paceline.errors import ConfigurationError
from paceline.files.checksums import Checksum, check_seal, seal
from paceline.files.reading import (
    Fields,
    Folder,
    checksum,
    mapping_of,
    number,
    optional,
    parse_json,
    text,
    whole,
)
from paceline.files.writing import finite, write_file

FORMAT = 1
"""The version of the format. A newer one is refused."""
MANIFEST = "manifest.json"
_MANIFEST_BYTES = 2**28
_READERS = 4
"""Maximum number of files verified at the same time. Each uses one core."""
_FEW_BYTES = 2**24
"""Files below this size are hashed in one thread, which takes less time than starting a second one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """State of all ranks of a run after a step."""

    folder: Path
    step: int
    facts: Mapping[str, Any]
    """Facts about the whole run, as passed to `Store.commit`."""
    metric: float | None
    """Last evaluated value. None if there is none."""
    saved_s: float
    """Time when it was finished, in seconds since 1970. For display only."""
    shards: Mapping[int, Checksum]
    """Checksum of each rank's file."""

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read the manifest, not the files of the ranks. Raise DamagedError if the manifest is damaged."""
        place = Folder(folder)
        with place.opened(MANIFEST, most_bytes=_MANIFEST_BYTES) as file:
            content = file.read()
            fields = Fields(parse_json(content))
            version = fields.get("format", whole)
            if version <= FORMAT:
                check_seal(content)
                return cls._of(folder, fields)
        remedy = f"read {folder / MANIFEST} with a newer Paceline"
        raise ConfigurationError("checkpoint", f"must be of format {FORMAT} or older", version, remedy)

    @classmethod
    def _of(cls, folder: Path, fields: Fields) -> Checkpoint:
        files = fields.get("files", mapping_of(text, checksum))
        ranks = range(len(files))
        if {*files} != {file_name(rank) for rank in ranks}:
            raise ValueError(f"files must be for ranks 0 to {len(files) - 1}")
        return cls(
            folder=folder,
            step=fields.get("step", whole),
            facts=fields.get("facts", mapping_of(str, lambda value: value)),
            metric=fields.get("metric", optional(number)),
            saved_s=fields.get("saved_s", number),
            shards={rank: files[file_name(rank)] for rank in ranks},
        )

    @property
    def ranks(self) -> int:
        return len(self.shards)

    @property
    def nbytes(self) -> int:
        """Size of all rank files."""
        return sum(each.nbytes for each in self.shards.values())

    def write_manifest(self) -> None:
        """Write the manifest to disk, then rename it into place."""
        values = {
            "format": FORMAT,
            "step": self.step,
            "metric": finite(self.metric),
            "saved_s": self.saved_s,
            "files": {file_name(rank): each.as_dict() for rank, each in self.shards.items()},
            "facts": dict(self.facts),
        }
        write_file(self.folder / MANIFEST, seal(values))

    def verify(self) -> None:
        """Read every file. Raise DamagedError with the first file, by rank, that is damaged."""
        names, sums = map(file_name, self.shards), self.shards.values()
        if self.nbytes < _FEW_BYTES:
            list(map(Folder(self.folder).verify, names, sums))
        else:
            with ThreadPoolExecutor(min(_READERS, self.ranks, os.cpu_count() or 1)) as pool:
                list(pool.map(Folder(self.folder).verify, names, sums))

    def verify_sizes(self) -> None:
        """Compare file sizes without reading the files. This detects truncated and missing files."""
        for rank, each in self.shards.items():
            Folder(self.folder).verify_size(file_name(rank), each)

    def shard(self, rank: int) -> Shard:
        """Read the state of a rank. Raise DamagedError if its file is damaged."""
        return read_shard(Folder(self.folder), rank, self.shards[rank])

    @property
    def run_name(self) -> str:
        """Name of the run in messages."""
        return f"a run of {self.facts.get('name', 'another program')}"

    def of_another_task(self, differ: Sequence[str]) -> ConfigurationError:
        """Return the error for a run that cannot resume from here. `differ` has a text for each difference."""
        held = f"{self.folder.parent}, which holds {self.run_name} up to step {self.step}"
        way = "start a new run in another folder (`paceline export` writes the weights, Task(model=…) takes them)"
        remedy = f"{'; '.join(differ)}; restore the old values; or, to change them on purpose, {way}"
        return ConfigurationError("checkpoint", "must belong to this run", held, remedy)

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.saved_s)
