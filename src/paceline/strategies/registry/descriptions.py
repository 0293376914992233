"""Descriptions of strategies for people: the family, and the sections of the module docstring."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.schedules.pipeline import CONTINUOUS

SYNCHRONOUS = ("map-reduce", "all-reduce", "sync", "central-storage")
"""Strategies in which every update uses the whole batch."""

IN_PIECES = ("layers", "pipeline", "tensor", "zero", "hybrid")
"""Strategies in which each worker holds a part of the model or of its training state."""

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "one worker": ("single",),
    "synchronous: same weights as one worker with the whole batch": SYNCHRONOUS,
    "model-parallel or sharded: also the same weights as one worker": IN_PIECES,
    "parameter servers that do not wait for all workers": (
        "k-sync",
        "k-batch-sync",
        "ssp",
        "k-async",
        "k-batch-async",
        "async",
    ),
    "without a server and without a global barrier": ("hogwild", "decentralized"),
    "local steps, then an average": ("local-sgd", "diloco"),
    "federated: data stays on the clients": ("fedavg", "fedprox", "fedavgm", "fedadam"),
}
"""The built-in strategies, grouped by what they have in common."""

OTHERS = "from other packages"
_HEADINGS = ("When", "Cost", "Source")


def family_of(name: str) -> str:
    return next((family for family, names in FAMILIES.items() if name in names), OTHERS)


def equals_single(spec: str) -> bool:
    """Return whether a strategy gives the weights of `single` after each step."""
    name, _, options = spec.partition(":")
    is_stale = any(f"order={order}" in options.split(",") for order in CONTINUOUS)
    return name in ("single", *SYNCHRONOUS, *IN_PIECES) and not is_stale


@dataclass(frozen=True, slots=True)
class Description:
    """A module docstring, split into its sections."""

    what: str
    notes: Mapping[str, str]
    """When to use it, its cost, its source. Sections that the docstring lacks are left out."""


def description_of(kind: type[Any]) -> Description:
    """Split the module docstring of a strategy.

    The last paragraph has one entry for each heading. An entry may have several lines.
    """
    docstring = inspect.getdoc(inspect.getmodule(kind)) or inspect.getdoc(kind) or ""
    *paragraphs, last = docstring.split("\n\n")
    if not last.startswith(_HEADINGS):
        return Description(docstring, {})
    notes: dict[str, str] = {}
    heading = ""
    for line in last.splitlines():
        found = next((one for one in _HEADINGS if line.startswith((f"{one}:", f"{one}s:", f"{one}, "))), None)
        if found is None:
            notes[heading] += f"\n{line}"
        else:
            heading = found
            notes[heading] = _without_heading(line)
    return Description("\n\n".join(paragraphs), notes)


def _without_heading(line: str) -> str:
    """Remove the heading from "Cost: …" and "Source: …". Change "Cost, n bytes: …" to "With n bytes: …"."""
    if line.startswith("Cost, "):
        return f"With {line.removeprefix('Cost, ')}"
    return line.partition(":")[2].strip()
