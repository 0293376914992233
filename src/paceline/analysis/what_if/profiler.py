"""Traces of torch.profiler, one file for each rank: which rank is slow, and a step without its slowness.

`torch.profiler` writes Chrome trace events (`export_chrome_trace`, `tensorboard_trace_handler`), as JSON or gzip. With
torch.distributed the file has the rank; otherwise the name of the file must have it, such as rank3.json.gz.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.costs.units import format_seconds
from paceline.errors import ConfigurationError

_NAMED = re.compile(r"(?:rank|worker|_r)[-_]?(\d+)", re.IGNORECASE)
_COMMUNICATES = re.compile(
    r"nccl|gloo|c10d::|record_param_comms|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast_|barrier",
    re.IGNORECASE,
)
_STEP = "ProfilerStep#"
_OPERATIONS, _KERNELS = "cpu_op", ("kernel", "gpu_memcpy", "gpu_memset")
_MOST_BYTES = 2**32
_SHOWN = 8

Key = tuple[str, int]
"""Name of an operation, and its number among those of this name in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledStep:
    """One step of a rank."""

    seconds: float
    operations_s: Mapping[Key, float]
    """Seconds of each operation except communication."""

    @property
    def computing_s(self) -> float:
        return sum(self.operations_s.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRank:
    """The steps of one rank, by their number."""

    rank: int
    file: str
    steps: Mapping[int, ProfiledStep]


def read_profiles(paths: Sequence[str | Path]) -> list[ProfiledRank]:
    """Read the traces of all ranks, given files or folders. Raise an error that describes what else was found."""
    files = [file for path in paths for file in _files(Path(path))]
    ranks = [_read(file) for file in files]
    seen: dict[int, str] = {}
    for each in ranks:
        if each.rank in seen:
            found = f"rank {each.rank} in {seen[each.rank]} and {each.file}"
            raise ConfigurationError("traces", "must be one file for each rank", found, "give one of them")
        seen[each.rank] = each.file
    if len(ranks) < 2:
        found = f"{len(ranks)} file{'s' * (len(ranks) != 1)}"
        raise ConfigurationError("traces", "must be of at least two ranks", found, "give a file of each rank")
    return sorted(ranks, key=lambda each: each.rank)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.iterdir() if each.name.endswith((".json", ".json.gz")))


def _read(file: Path) -> ProfiledRank:
    content = _content(file)
    events = content.get("traceEvents")
    if not isinstance(events, list):
        raise _unlike(file, f"a JSON object with {_names(content)}, but no traceEvents")
    slices = [
        each for each in events if isinstance(each, dict) and each.get("ph") == "X" and _has_times(each)
    ]
    if not any(each.get("cat") == _OPERATIONS for each in slices):
        kinds = sorted({str(each.get("cat")) for each in slices})
        raise _unlike(
            file, f"{len(slices)} slices of the kinds {', '.join(kinds[:_SHOWN]) or '(none)'}, but no cpu_op"
        )
    return ProfiledRank(rank=_rank(file, content), file=file.name, steps=_steps(slices))


def _content(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise _unlike(file, f"{file.stat().st_size:,} bytes")
        data = file.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        found = json.loads(text)
    except OSError as error:
        raise ConfigurationError("traces", "must be files that can be read", str(file), str(error)) from error
    except (ValueError, EOFError, zlib.error) as error:
        raise _unlike(file, f"no JSON ({error})") from error
    if not isinstance(found, dict):
        raise _unlike(file, f"a JSON {type(found).__name__}")
    return found


def _unlike(file: Path, found: str) -> ConfigurationError:
    remedy = "write it with torch.profiler: profile.export_chrome_trace('rank0.json.gz')"
    return ConfigurationError("traces", "must be Chrome traces of torch.profiler", f"{file}: {found}", remedy)


def _names(content: Mapping[str, Any]) -> str:
    names = [repr(name)[:40] for name in list(content)[:_SHOWN]]
    return ", ".join(names) or "no keys"


def _has_times(event: Mapping[str, Any]) -> bool:
    return all(isinstance(event.get(name), int | float) for name in ("ts", "dur"))


def _rank(file: Path, content: Mapping[str, Any]) -> int:
    distributed = content.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    if isinstance(rank, int) and rank >= 0:
        return rank
    named = _NAMED.search(file.name)
    if named is not None:
        return int(named[1])
    found = f"{file.name}, with {_names(content)}"
    remedy = (
        "initialise torch.distributed before the profiler starts, or name the files rank0.json, rank1.json, …"
    )
    raise ConfigurationError("traces", "must name their rank", found, remedy)


def _steps(slices: Sequence[Mapping[str, Any]]) -> dict[int, ProfiledStep]:
    marks = {
        int(each["name"].removeprefix(_STEP)): (each["ts"], each["ts"] + each["dur"])
        for each in slices
        if str(each.get("name", "")).startswith(_STEP) and each["name"].removeprefix(_STEP).isdecimal()
    }
    operations = list(_outermost(slices))
    if not marks:  # without a schedule, the whole trace counts as one step
        begin, end = min(op["ts"] for op in operations), max(op["ts"] + op["dur"] for op in operations)
        marks = {0: (begin, end)}
    return {number: _step(bounds, operations) for number, bounds in sorted(marks.items())}


def _outermost(slices: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the operations that are not part of another one: kernels if there are any, else operations of threads."""
    has_kernels = any(each.get("cat") in _KERNELS for each in slices)
    kinds = _KERNELS if has_kernels else (_OPERATIONS,)
    ends: dict[object, float] = {}
    chosen = [each for each in slices if each.get("cat") in kinds]
    for each in sorted(chosen, key=lambda each: (each["ts"], -each["dur"])):
        place = each.get("pid"), each.get("tid")
        if each["ts"] >= ends.get(place, -1.0):
            ends[place] = each["ts"] + each["dur"]
            yield each


def _step(bounds: tuple[float, float], operations: Sequence[Mapping[str, Any]]) -> ProfiledStep:
    begin, end = bounds
    seconds: dict[Key, float] = {}
    counts: dict[str, int] = {}
    for each in operations:
        name = str(each.get("name", ""))
        if begin <= each["ts"] < end and not _COMMUNICATES.search(name):
            counts[name] = counts.get(name, 0) + 1
            seconds[name, counts[name]] = each["dur"] / 1e6
    return ProfiledStep(seconds=(end - begin) / 1e6, operations_s=seconds)


# What the traces show


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledWhatIf:
    """The slowest rank of profiled steps, and a step in which every operation takes its median over the ranks."""

    ranks: tuple[int, ...]
    steps: int
    """Number of steps that all traces have."""
    computing_s: tuple[float, ...]
    """Seconds of computation in a step, by rank."""
    slow_rank: int
    factor: float
    """Its seconds of computation, divided by the median of the other ranks."""
    causes: tuple[tuple[str, float], ...]
    """Operations in which it loses the most, with the seconds lost in a step."""
    recorded_s: float
    step_s: float
    """Seconds of a step if every operation took its median over the ranks."""

    def __str__(self) -> str:
        lost = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in self.causes)
        lines = [
            f"{self.steps} steps of {len(self.ranks)} ranks, {format_seconds(self.recorded_s)} each",
            f"rank {self.slow_rank} computes {self.factor:.2f} times as long as the others",
            f"if every operation took its median over the ranks: {format_seconds(self.step_s)} a step "
            f"({self.step_s / self.recorded_s - 1:+.0%})",
        ]
        return "\n".join(lines + ([f"it loses the most in {lost}"] if lost else []))


def what_if_profiled(profiles: Sequence[ProfiledRank]) -> ProfiledWhatIf:
    """Compare the ranks of profiled steps.

    Ranks wait for the slowest one. So the time of a step that is not computation (communication, the host) is that of
    the rank which waits the least.
    """
    common = sorted(set.intersection(*(set(each.steps) for each in profiles)))
    if not common:
        found = "; ".join(f"rank {each.rank}: {list(each.steps)[:_SHOWN]}" for each in profiles)
        raise ConfigurationError(
            "traces", "must have steps in common", found, "profile the same steps on each rank"
        )
    rows = [[each.steps[number] for each in profiles] for number in common]
    computing = [statistics.median(row[place].computing_s for row in rows) for place in range(len(profiles))]
    slow = max(range(len(profiles)), key=lambda place: computing[place])
    others = statistics.median(seconds for place, seconds in enumerate(computing) if place != slow)
    return ProfiledWhatIf(
        ranks=tuple(each.rank for each in profiles),
        steps=len(common),
        computing_s=tuple(computing),
        slow_rank=profiles[slow].rank,
        factor=computing[slow] / others if others else 1.0,
        causes=_causes(rows, slow),
        recorded_s=statistics.median(max(step.seconds for step in row) for row in rows),
        step_s=statistics.median(_even_s(row) for row in rows),
    )


def _even_s(row: Sequence[ProfiledStep]) -> float:
    """Return the seconds of a step in which every operation takes its median over the ranks."""
    rest_s = min(step.seconds - step.computing_s for step in row)
    return max(0.0, rest_s) + sum(_medians(row).values())


def _medians(row: Sequence[ProfiledStep]) -> dict[Key, float]:
    keys = {key for step in row for key in step.operations_s}
    # An operation that fewer than half of the ranks do has the median 0.
    return {key: statistics.median(step.operations_s.get(key, 0.0) for step in row) for key in keys}


def _causes(rows: Sequence[Sequence[ProfiledStep]], slow: int) -> tuple[tuple[str, float], ...]:
    lost: dict[str, float] = {}
    for row in rows:
        medians = _medians(row)
        for key, seconds in row[slow].operations_s.items():
            lost[key[0]] = lost.get(key[0], 0.0) + (seconds - medians[key]) / len(rows)
    most = sorted(lost.items(), key=lambda item: -item[1])[:3]
    return tuple((name, seconds) for name, seconds in most if seconds > 0)
