"""The saved state of one rank, and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.files.checksums import Checksum
from paceline.files.reading import Folder, mapping_of, parse_json
from paceline.files.tensor_files import read_tensors, write_tensors
from paceline.files.writing import replacing

if TYPE_CHECKING:
    from torch import Tensor

_FACTS = "facts"
"""Name of the header entry with the metadata of the shard, as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """State of one rank between two generations of a run."""

    rank: int
    tensors: dict[str, Tensor]
    """Tensors by kind and name: "parameters/0.weight", "optimizer/0.weight/exp_avg", "state/outer_momentum" …"""
    facts: dict[str, Any]
    """Values that JSON can hold: versions, random streams, counts."""


def file_name(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def write_shard(folder: Path, shard: Shard) -> Checksum:
    """Write the rank's file into the folder and sync it to disk."""
    with replacing(folder / file_name(shard.rank)) as out:
        return write_tensors(out, shard.tensors, {_FACTS: json.dumps(shard.facts)})


def read_shard(folder: Folder, rank: int, checksum: Checksum) -> Shard:
    """Read the rank's file. Each byte is read once. Raise DamagedError if the file is damaged."""
    with folder.opened(file_name(rank)) as file:
        found = read_tensors(file, checksum)
        facts = mapping_of(str, lambda value: value)(parse_json(found.notes[_FACTS].encode()))
    return Shard(rank=rank, tensors=found.tensors, facts=facts)
