"""A finished checkpoint: a folder with a file of each rank, and a manifest that says what they must be."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoints.shard import Shard, file_name, read_shard
from paceline.checksums import Checksum, check_seal, seal
from paceline.errors import ConfigurationError
from paceline.reading import Fields, Folder, checksum, mapping_of, number, optional, parse_json, text, whole
from paceline.writing import finite, write_file

__all__ = ["FORMAT", "MANIFEST", "Checkpoint"]

FORMAT = 1
"""The version of the format. A newer one is refused."""
MANIFEST = "manifest.json"
_MANIFEST_BYTES = 2**28
_READERS = 4
"""Files that are verified at once, at most: each takes a core."""
_FEW_BYTES = 2**24
"""So few are hashed before a second thread is there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Where a run can go on: everything that its ranks held after a step."""

    folder: Path
    step: int
    facts: Mapping[str, Any]
    """Of the whole run, as `Store.commit` was given them."""
    metric: float | None
    """As last evaluated."""
    saved_s: float
    """When it was finished, in seconds since 1970: to be shown, not to decide anything."""
    shards: Mapping[int, Checksum]
    """What the file of each rank must be."""

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read the manifest. DamagedError: it is not whole. The ranks' files are not looked at."""
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
            raise ValueError(f"files must be those of ranks 0 to {len(files) - 1}")
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
        """Of the ranks' files."""
        return sum(each.nbytes for each in self.shards.values())

    def write_manifest(self) -> None:
        """Rename it into its place, when it is on the disk."""
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
        """Read every file. DamagedError: one is not what was written; the first by rank is named."""
        names, sums = map(file_name, self.shards), self.shards.values()
        if self.nbytes < _FEW_BYTES:
            list(map(Folder(self.folder).verify, names, sums))
        else:
            with ThreadPoolExecutor(min(_READERS, self.ranks, os.cpu_count() or 1)) as pool:
                list(pool.map(Folder(self.folder).verify, names, sums))

    def verify_sizes(self) -> None:
        """As `verify`, but without reading: a file that was cut off or is missing is found."""
        for rank, each in self.shards.items():
            Folder(self.folder).verify_size(file_name(rank), each)

    def shard(self, rank: int) -> Shard:
        """What the rank held. DamagedError: its file is not the one that was written; found while it is read."""
        return read_shard(Folder(self.folder), rank, self.shards[rank])

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.saved_s)
