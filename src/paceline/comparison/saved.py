"""Comparisons on disk: a directory for each run, and a list of them; and runs that were made elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.comparison.entry import Entry
from paceline.errors import ConfigurationError
from paceline.run import Run

__all__ = ["load_entries", "save_entries"]

FORMAT = 1
"""The version of comparison.json. A newer one is refused."""
_LIST = "comparison.json"


def save_entries(entries: Sequence[Entry], directory: Path) -> None:
    """Write every run, and then the list of them."""
    directory.mkdir(parents=True, exist_ok=True)
    listed = []
    for place, entry in enumerate(entries, start=1):
        names = [f"{place}-{_as_file_name(entry.name)}/{number}" for number in range(1, len(entry.runs) + 1)]
        for name, run in zip(names, entry.runs, strict=True):
            run.save(directory / name)
        listed.append({"name": entry.name, "runs": names, "error": entry.error})
    text = json.dumps({"format": FORMAT, "entries": listed}, indent=1)
    (directory / _LIST).write_text(text + "\n", encoding="utf-8")


def _as_file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9=.-]+", "_", name)[:80]


def load_entries(directories: Iterable[Path]) -> list[Entry]:
    """The runs in some directories, of a run or of a whole comparison each, grouped into entries.

    Runs of one strategy on one cluster are repeats. Where a strategy ran on several clusters, the entries' names say
    on how many workers or, if that does not tell them apart, on which cluster.
    """
    runs: list[Run] = []
    failed: list[Entry] = []
    for directory in directories:
        for found in _load(Path(directory)):
            runs.extend([found] if isinstance(found, Run) else [])
            failed.extend([found] if isinstance(found, Entry) else [])
    groups: dict[tuple[str, int, str], list[Run]] = {}
    for run in runs:
        groups.setdefault(_group(run), []).append(run)
    done = [Entry(name=_name(key, groups), runs=tuple(same)) for key, same in groups.items()]
    names = {entry.name for entry in done}
    return done + [entry for entry in failed if entry.name not in names]


def _load(directory: Path) -> Iterator[Run | Entry]:
    listed = directory / _LIST
    if not listed.is_file():
        yield Run.load(directory)
        return
    for item in _read_list(listed):
        if item["error"] is not None:
            yield Entry(name=item["name"], error=item["error"])
        for name in item["runs"]:
            yield Run.load(directory / name)


def _read_list(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, entries = int(content["format"]), list(content["entries"])
        for item in entries:
            if not isinstance(item["name"], str) or not all(isinstance(run, str) for run in item["runs"]):
                raise TypeError("an entry has a name and the names of its runs")
            item.setdefault("error", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = f"save the comparison again ({type(error).__name__}: {error})"
        raise ConfigurationError("directory", f"must hold a whole {_LIST}", str(path), remedy) from error
    if version > FORMAT:
        remedy = "read it with a newer Paceline"
        raise ConfigurationError("directory", f"must be of format {FORMAT} or older", version, remedy)
    return entries


def _group(run: Run) -> tuple[str, int, str]:
    """Strategy, workers, and what else the cluster is. `single` has one worker on every cluster."""
    workers = sum(each.role != "server" for each in run.trace.spans)
    return run.strategy, workers, run.cluster.lstrip("0123456789")


def _name(key: tuple[str, int, str], groups: Iterable[tuple[str, int, str]]) -> str:
    strategy, workers, cluster = key
    same = [other for other in groups if other[0] == strategy]
    if len(same) == 1:
        return strategy
    if len({other[1] for other in same}) == len(same):
        return f"{strategy}, {workers} worker{'s' if workers > 1 else ''}"
    return f"{strategy}, {workers}{cluster}"
