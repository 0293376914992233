"""Comparisons on disk: a directory for each run, and a list of them. Also loads single runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.analysis.comparison.entry import Entry
from paceline.files.reading import Fields, Folder, list_of, optional, parse_json, text, whole
from paceline.files.writing import write_folder
from paceline.runs.files import check_format
from paceline.runs.run import Run
from paceline.task.fingerprint import differences

FORMAT = 1
"""Version of comparison.json. A newer version is refused."""
_LIST = "comparison.json"
_LIST_BYTES = 2**28

_Key = tuple[str, int, str]
"""Strategy, number of workers, and cluster."""


class SavedComparison:
    """A comparison on disk. Runs may be added as they end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._paths: dict[str, list[str]] = {}
        """Folders of the saved runs of each entry."""

    def load(self) -> dict[str, list[Run]]:
        """Return the saved runs of each strategy that did not fail, and add to them from now on."""
        folder = Folder(self._directory)
        if not folder.has(_LIST):
            return {}
        self._paths = {item.name: item.runs for item in _read_list(folder) if item.error is None}
        return {
            name: [Run.load(folder.folder(path).path) for path in paths]
            for name, paths in self._paths.items()
        }

    def save(self, entries: Sequence[Entry]) -> None:
        """Write the runs that are not saved yet, and the list of all, atomically. Other files are not changed."""
        write_folder(self._directory, lambda folder: self._write(entries, folder))

    def _write(self, entries: Sequence[Entry], folder: Path) -> None:
        listed = []
        for entry in entries:
            paths = self._paths.setdefault(entry.name, [])
            place = list(self._paths).index(entry.name) + 1
            for number, run in enumerate(entry.runs[len(paths) :], start=len(paths) + 1):
                paths.append(f"{place}-{_as_file_name(entry.name)}/{number}")
                run.save(folder / paths[-1])
            listed.append({"name": entry.name, "runs": paths[: len(entry.runs)], "error": entry.error})
        content = json.dumps({"format": FORMAT, "entries": listed}, indent=1)
        (folder / _LIST).write_text(content + "\n", encoding="utf-8")


def _as_file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9=.-]+", "_", name)[:80]


def load_entries(directories: Iterable[Path]) -> list[Entry]:
    """Load the runs in some directories, and group them into entries. A directory has a run or a comparison.

    Runs of one strategy and one task on one cluster are repeats. If a strategy ran on several clusters, the names of
    the entries include the number of workers or, if these are equal, the cluster. If runs trained different tasks, the
    names include the number of the task, in the order of the directories.
    """
    runs: list[Run] = []
    failed: list[Entry] = []
    for directory in directories:
        for found in _load(Path(directory)):
            runs.extend([found] if isinstance(found, Run) else [])
            failed.extend([found] if isinstance(found, Entry) else [])
    groups: list[dict[_Key, list[Run]]] = []
    for run in runs:
        _of_its_task(run, groups).setdefault(_group(run), []).append(run)
    done = [
        Entry(name=_name(key, same) + (f", task {number}" if len(groups) > 1 else ""), runs=tuple(repeats))
        for number, same in enumerate(groups, start=1)
        for key, repeats in same.items()
    ]
    names = {entry.name for entry in done}
    return done + [entry for entry in failed if entry.name not in names]


def _load(directory: Path) -> Iterator[Run | Entry]:
    folder = Folder(directory)
    if not folder.has(_LIST):
        yield Run.load(directory)
        return
    for item in _read_list(folder):
        if item.error is not None:
            yield Entry(name=item.name, error=item.error)
        for name in item.runs:
            yield Run.load(folder.folder(name).path)


class _Item(NamedTuple):
    """One item of the list."""

    name: str
    runs: list[str]
    error: str | None


def _read_list(folder: Folder) -> list[_Item]:
    with folder.opened(_LIST, most_bytes=_LIST_BYTES) as file:
        content = Fields(parse_json(file.read()))
        version = content.get("format", whole)
        items = [] if version > FORMAT else content.get("entries", list_of(_item))
        runs = [name for item in items for name in item.runs]
        if len(set(runs)) < len(runs):
            raise ValueError("each run must be listed once")
    check_format(folder, version, FORMAT)
    return items


def _item(value: object) -> _Item:
    fields = Fields(value)
    return _Item(
        fields.get("name", text),
        fields.get("runs", list_of(text)),
        fields.get("error", optional(text), None),
    )


def _of_its_task(run: Run, groups: list[dict[_Key, list[Run]]]) -> dict[_Key, list[Run]]:
    """Return the runs of the same task, by their keys."""
    for group in groups:
        if not differences(
            {"": [run.fingerprint, *(each.fingerprint for same in group.values() for each in same)]}
        ):
            return group
    groups.append({})
    return groups[-1]


def _group(run: Run) -> _Key:
    """Return the key of a run. `single` has one worker on every cluster."""
    workers = sum(each.role != "server" for each in run.trace.spans)
    return run.strategy, workers, run.cluster.lstrip("0123456789")


def _name(key: _Key, groups: Iterable[_Key]) -> str:
    strategy, workers, cluster = key
    same = [other for other in groups if other[0] == strategy]
    if len(same) == 1:
        return strategy
    if len({other[1] for other in same}) == len(same):
        return f"{strategy}, {workers} worker{'s' if workers > 1 else ''}"
    return f"{strategy}, {workers}{cluster}"
