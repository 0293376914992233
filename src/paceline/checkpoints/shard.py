"""What one rank holds, and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.checksums import Checksum
from paceline.reading import Folder, mapping_of, parse_json
from paceline.tensor_files import read_tensors, write_tensors
from paceline.writing import replacing

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Shard", "file_name", "read_shard", "write_shard"]

_FACTS = "facts"
"""The note of the file's header that has the facts, as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """What one rank holds between two legs of a run."""

    rank: int
    tensors: dict[str, Tensor]
    """By kind and name: "parameters/0.weight", "optimizer/0.weight/momentum_buffer", "state/outer_momentum" …"""
    facts: dict[str, Any]
    """What JSON can hold: versions, streams of chance, counts."""


def file_name(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def write_shard(folder: Path, shard: Shard) -> Checksum:
    """Write the rank's file into the folder and bring it to the disk."""
    with replacing(folder / file_name(shard.rank)) as out:
        return write_tensors(out, shard.tensors, {_FACTS: json.dumps(shard.facts)})


def read_shard(folder: Folder, rank: int, checksum: Checksum) -> Shard:
    """Each byte is read once. DamagedError: the file is not the one that was written."""
    with folder.opened(file_name(rank)) as file:
        found = read_tensors(file, checksum)
        facts = mapping_of(str, lambda value: value)(parse_json(found.notes[_FACTS].encode()))
    return Shard(rank=rank, tensors=found.tensors, facts=facts)
