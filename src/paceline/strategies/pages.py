"""What is known of a strategy, for people: its family, and what its own module says of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FAMILIES", "IN_PIECES", "OTHERS", "SYNCHRONOUS", "Page", "family_of", "page_of"]

SYNCHRONOUS = ("map-reduce", "all-reduce", "sync", "central-storage")
"""Those whose every update is of the whole batch."""

IN_PIECES = ("layers", "pipeline", "tensor", "zero", "hybrid")
"""Those whose workers each hold a part of the model, or of what training it needs."""

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "one worker": ("single",),
    "synchronous: every update is that of one worker with the whole batch": SYNCHRONOUS,
    "the model in pieces: every update is that of one worker, too": IN_PIECES,
    "parameter servers that do not wait for everybody": (
        "k-sync",
        "k-batch-sync",
        "ssp",
        "k-async",
        "k-batch-async",
        "async",
    ),
    "without a server, and without waiting": ("hogwild", "decentralized"),
    "steps by oneself, then a mean": ("local-sgd", "diloco"),
    "federated: data stays where it is": ("fedavg", "fedprox", "fedavgm", "fedadam"),
}
"""The strategies of the tree, by what they have in common."""

OTHERS = "of other packages"
_HEADINGS = ("When", "Cost", "Source")


def family_of(name: str) -> str:
    return next((family for family, names in FAMILIES.items() if name in names), OTHERS)


@dataclass(frozen=True, slots=True)
class Page:
    """A module's docstring, taken apart."""

    what: str
    notes: Mapping[str, str]
    """When to use it, its cost, its source: those that are told."""


def page_of(kind: type[Any]) -> Page:
    """The last paragraph of a module has a line for each heading, which may go on over several."""
    docstring = inspect.getdoc(inspect.getmodule(kind)) or inspect.getdoc(kind) or ""
    *paragraphs, last = docstring.split("\n\n")
    if not last.startswith(_HEADINGS):
        return Page(docstring, {})
    notes: dict[str, str] = {}
    heading = ""
    for line in last.splitlines():
        found = next((one for one in _HEADINGS if line.startswith((f"{one}:", f"{one}s:", f"{one}, "))), None)
        if found is None:
            notes[heading] += f"\n{line}"
        else:
            heading = found
            notes[heading] = _without_heading(line)
    return Page("\n\n".join(paragraphs), notes)


def _without_heading(line: str) -> str:
    """ "Cost: …" and "Source: …" without their first word; "Cost, n bytes: …" as "With n bytes: …"."""
    if line.startswith("Cost, "):
        return f"With {line.removeprefix('Cost, ')}"
    return line.partition(":")[2].strip()
