"""Calibration: the measured costs of one machine.

It has the links between ranks, the seconds of a task's gradients and updates, and the slowdown of ranks that share the
cores and the memory of the machine. `paceline.planner.calibrate` measures it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.costs.calibrated_costs import ComputeCosts, LinkCosts, positive
from paceline.costs.link import Link
from paceline.costs.units import format_bandwidth, format_seconds
from paceline.errors import ConfigurationError
from paceline.files.reading import (
    Fields,
    Folder,
    list_of,
    mapping_of,
    parse_json,
    seconds,
    text,
    whole,
)
from paceline.files.writing import finite, write_file
from paceline.system.environment import machine

FORMAT = 1
SHARED_MEMORY, TCP, WINDOW = "shared-memory", "tcp", "window"
_MOST_BYTES = 10_000_000
_IDENTITY = ("processor", "cores", "memory")
_VERSIONS = ("paceline", "python", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured costs of a machine. Created by `pl.calibrate`; `save` and `load` store it as JSON."""

    machine: Mapping[str, str]
    """Identity of the machine: processor, cores, memory, and versions."""
    workers: int
    """Largest number of ranks that were measured at the same time."""
    compute: tuple[ComputeCosts, ...]
    links: tuple[LinkCosts, ...] = ()
    """Empty if only one rank was measured."""
    task: Mapping[str, str] = field(default_factory=dict)
    """Fingerprint of the measured task. Empty without a task."""
    start_s: float = 0.0
    """Seconds from the call to the first step of a run of `workers` ranks."""
    copy_bytes_per_s: float = 0.0
    """Bytes per second of a copy in memory by one rank."""
    took_s: float = 0.0
    """Duration of the calibration."""

    @property
    def cores(self) -> int:
        return int(self.machine["cores"])

    @property
    def differences(self) -> list[str]:
        """Facts in which this machine differs from the calibrated one, such as "cores 2 (here) and 64"."""
        here = machine()
        known = (name for name in (*_IDENTITY, *_VERSIONS) if name in here and name in self.machine)
        return [
            f"{name} {here[name]} (here) and {self.machine[name]}"
            for name in known
            if here[name] != self.machine[name]
        ]

    @property
    def is_of_this_machine(self) -> bool:
        """Whether processor, cores and memory are those of this machine. Versions may differ."""
        here = machine()
        return all(here.get(name) == self.machine.get(name) for name in _IDENTITY)

    def threads_of(self, workers: int) -> int:
        """Return the compute threads of each of `workers` ranks by default: see `pl.Local`."""
        return max(1, self.cores // max(1, workers))

    def compute_of(self, workers: int, threads: int | None = None) -> ComputeCosts:
        """Return the costs of computations in a run. Raise an error if such ranks were not measured."""
        wanted = self.threads_of(workers) if threads is None else threads
        found = next((each for each in self.compute if each.threads == wanted), None)
        if found is None:
            known = ", ".join(str(each.threads) for each in self.compute)
            remedy = f"calibrate with {workers} workers"
            raise ConfigurationError("calibration", f"must have ranks with {known} threads", wanted, remedy)
        most = max(found.slowdown)
        if workers > most and most * wanted < self.cores:
            remedy = f"calibrate with {workers} workers: cores were left idle"
            raise ConfigurationError("workers", f"must be at most {most}, as calibrated", workers, remedy)
        return found

    def link_of(self, kind: str, ranks: int) -> Link:
        """Return the link for a run of `ranks` ranks: that of the next larger number that was measured."""
        of_kind = sorted((each for each in self.links if each.kind == kind), key=lambda each: each.ranks)
        if not of_kind:
            return Link.ideal()  # a single rank sends nothing
        return next((each.link for each in of_kind if each.ranks >= ranks), of_kind[-1].link)

    def as_dict(self) -> dict[str, Any]:
        """Return the calibration as a dictionary for JSON."""
        values: dict[str, Any] = finite({"format": FORMAT, **dataclasses.asdict(self)})
        return values

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibration as JSON."""
        write_file(path, (json.dumps(self.as_dict(), indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read a calibration that `save` wrote. Raise an error that names the defect of another file.

        A calibration of another machine is loaded. What it predicts is marked with the machine's name.
        """
        place = Path(path)
        with Folder(place.parent).opened(place.name, most_bytes=_MOST_BYTES) as file:
            return _calibration(Fields(parse_json(file.read())))

    def __str__(self) -> str:
        lines = [", ".join(f"{name} {value}" for name, value in self.machine.items())]
        for link in self.links:
            words = f"{link.kind}, {link.ranks} ranks: {format_seconds(link.latency_s)} and "
            words += f"{format_seconds(link.message_s)} a message, {format_bandwidth(link.bytes_per_s)}"
            lines.append(f"{words} (off by up to {link.residual:.0%})")
        return "\n".join([*lines, *map(_words_of, self.compute), *self._other_words()])

    def _other_words(self) -> list[str]:
        words = [f"copy: {format_bandwidth(self.copy_bytes_per_s)}"] if self.copy_bytes_per_s else []
        return words + ([f"start: {format_seconds(self.start_s)}"] if self.start_s else [])

    @property
    def name(self) -> str:
        """Text for the description of a cluster. It marks a calibration of another machine."""
        if self.is_of_this_machine:
            return "calibrated"
        return f"calibrated on another machine ({self.machine['processor']}, {self.cores} cores)"


def _words_of(costs: ComputeCosts) -> str:
    many = f"{costs.threads} thread{'s' * (costs.threads > 1)} a rank: "
    factors = ", ".join(f"{count} at once {factor:.2f}" for count, factor in sorted(costs.slowdown.items()))
    if not costs.samples:
        return f"{many}slowdown {factors}"
    gradient = f"gradient {format_seconds(costs.fixed_s)} + {format_seconds(costs.per_sample_s)} a sample"
    words = f"{many}{gradient} (off by up to {costs.residual:.0%}), update {format_seconds(costs.update_s)}"
    return f"{words}, slowdown {factors}"


# Reading


def _calibration(fields: Fields) -> Calibration:
    if (found := fields.get("format", whole)) != FORMAT:
        raise ValueError(f"its format is {found}, but this version reads {FORMAT}")
    identity = fields.get("machine", mapping_of(text, text))
    missing = [name for name in ("processor", "cores") if name not in identity]
    if missing or not identity["cores"].isdecimal() or int(identity["cores"]) < 1:
        raise ValueError("machine must have a processor and a number of cores")
    compute = tuple(ComputeCosts.read(Fields(each)) for each in fields.get("compute", list_of(_any)))
    if not compute:
        raise ValueError("compute is empty")
    return Calibration(
        machine=identity,
        workers=fields.get("workers", positive),
        compute=compute,
        links=tuple(LinkCosts.read(Fields(each)) for each in fields.get("links", list_of(_any))),
        task=fields.get("task", mapping_of(text, text)),
        **{name: fields.get(name, seconds) for name in ("start_s", "copy_bytes_per_s", "took_s")},
    )


def _any(value: object) -> Any:
    return value
