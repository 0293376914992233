"""Parser of topology names with parameters: "ring", "torus:rows=4", "erdos-renyi:p=0.2,seed=3".

Parameters may also be separated by colons, for places where a comma has another meaning.
"""

from __future__ import annotations

import re
from typing import Any

from paceline.errors import ConfigurationError, UnknownNameError
from paceline.schedules.topologies.families import FAMILIES


def parse_topology(words: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a family, and its parameters."""
    name, *items = re.split("[:,]", words)
    if name not in FAMILIES:
        raise UnknownNameError("topology", name, [*FAMILIES, "a file of edges", "a .npy or .csv file"])
    known = FAMILIES[name].parameters
    values: dict[str, Any] = {}
    for item in filter(None, items):
        key, equals, text = (part.strip() for part in item.partition("="))
        if key not in known:
            raise UnknownNameError(f"parameter of {name}", key, known)
        if not equals or key in values:
            how = "once" if equals else "a value"
            raise ConfigurationError(f"{name}:{key}", f"must be given {how}", words, f"write {name}:{key}=…")
        values[key] = _number(f"{name}:{key}", known[key], text)
    return name, values


def _number(argument: str, kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        bound = f"must be a {'whole ' if kind is int else ''}number"
        raise ConfigurationError(argument, bound, text) from None
