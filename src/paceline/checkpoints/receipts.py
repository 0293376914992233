"""Receipts: small files by which ranks report that their part of a checkpoint is on disk, or why it is not.

Receipts are renamed into place. Ranks of several hosts need only the shared folder to communicate.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from paceline.files.checksums import Checksum, check_seal, seal
from paceline.files.reading import Fields, Folder, checksum, parse_json
from paceline.files.writing import write_file

_MOST_BYTES = 4096
_SHORTEST_S, _LONGEST_S = 0.002, 0.25
"""Minimum and maximum of the seconds between two checks, which increase with the waiting time."""
_NAMED = 10
_FAILURE = re.compile(r"failure-(\d+)\.txt")


def leave_receipt(folder: Path, rank: int, written: Checksum) -> None:
    """Record that the rank's file is complete and on disk."""
    write_file(folder / _receipt(rank), seal({"file": written.as_dict()}))


def leave_failure(folder: Path, rank: int, reason: str) -> None:
    """Record that the rank's file could not be written, so that the reporter does not wait for it. Ignore errors.

    A full disk often still has room for an empty file.
    """
    with contextlib.suppress(OSError):
        (folder / _failure(rank)).write_text(reason, encoding="utf-8")


def check_no_failure(folder: Path) -> set[str]:
    """Return the names in the folder. Raise OSError if a rank could not write its file."""
    # A network file system may answer a lookup of one name from its cache, but not this listing.
    names = {*os.listdir(folder)}
    failed = sorted(int(found[1]) for found in map(_FAILURE.fullmatch, names) if found)
    if failed:
        reason = (folder / _failure(failed[0])).read_text(encoding="utf-8", errors="replace")[:300]
        raise OSError(None, f"rank {failed[0]} could not write its file{': ' * bool(reason)}{reason}")
    return names


def wait_for_receipts(folder: Path, ranks: int, deadline_s: float) -> Mapping[int, Checksum]:
    """Return the checksum of each rank's file. Raise OSError if a rank failed, or did not write by the deadline."""
    found: dict[int, Checksum] = {}
    until_s, pause_s = time.monotonic() + deadline_s, _SHORTEST_S
    while True:
        names = check_no_failure(folder)
        for rank in range(ranks):
            if rank not in found and _receipt(rank) in names:
                found[rank] = _read_receipt(folder, rank)
        missing = [rank for rank in range(ranks) if rank not in found]
        if not missing:
            return dict(sorted(found.items()))
        if time.monotonic() > until_s:
            raise OSError(errno.ETIMEDOUT, f"{_named(missing)} did not write within {deadline_s:g} s")
        time.sleep(min(pause_s, max(0.0, until_s - time.monotonic())))
        pause_s = min(2 * pause_s, _LONGEST_S)


def remove_receipts(folder: Path) -> None:
    for receipt in folder.glob(_receipt("*")):
        receipt.unlink()


def _read_receipt(folder: Path, rank: int) -> Checksum:
    with Folder(folder).opened(_receipt(rank), most_bytes=_MOST_BYTES) as file:
        content = file.read()
        check_seal(content)
        return Fields(parse_json(content)).get("file", checksum)


def _receipt(rank: int | str) -> str:
    return f"receipt-{rank}.json"


def _failure(rank: int) -> str:
    return f"failure-{rank}.txt"


def _named(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks[:_NAMED])) + f" and {len(ranks) - _NAMED} more" * (len(ranks) > _NAMED)
    return f"rank{'s' * (len(ranks) > 1)} {listed}"
