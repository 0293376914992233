"""The strategies that a planner tries: combinations of values that strategies declare (`shared/search_space.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paceline.context import Strategy
from paceline.errors import ConfigurationError
from paceline.strategies.registry.table import find
from paceline.strategies.shared.search_space import Scope, Tried

_KEY = "tries"


def unsuited(name: str, scope: Scope) -> str:
    """Return the reason not to try a strategy. Empty if it is tried."""
    reason: Callable[[Scope], str] | None = getattr(find(name), "unsuited", None)
    return "" if reason is None else reason(scope)


def starts(name: str, scope: Scope) -> list[Strategy]:
    """Return all combinations of the leading fields of a strategy. The other fields have their default values.

    Combinations that the strategy refuses are left out. If it refuses all of them because of the number of workers, its
    error is raised.
    """
    found: list[Strategy] = [find(name)()]
    found[0].roles(scope.workers)
    for field, tried in _declared(type(found[0])):
        if tried.leading is not None:
            changed = (
                _replaced(each, field, value) for each in found for value in tried.leading(scope, each)
            )
            found = [each for each in changed if each is not None and allows(each, scope.workers)] or found
    return found


def neighbours(strategy: Strategy, scope: Scope) -> Iterator[Strategy]:
    """Yield strategies that differ in one field, with the values that the strategy declares."""
    for field, tried in _declared(type(strategy)):
        for value in tried.values(scope, strategy):
            changed = _replaced(strategy, field, value)
            if changed is not None and changed != strategy and allows(changed, scope.workers):
                yield changed


def _declared(kind: type[Any]) -> list[tuple[str, Tried]]:
    if not dataclasses.is_dataclass(kind):
        return []
    return [(each.name, each.metadata[_KEY]) for each in dataclasses.fields(kind) if _KEY in each.metadata]


def _replaced(strategy: Any, field: str, value: object) -> Strategy | None:
    """Return the strategy with another value; None if it refuses the value."""
    changes = value if isinstance(value, Mapping) else {field: value}
    try:
        changed: Strategy = dataclasses.replace(strategy, **changes)
    except ConfigurationError:
        return None
    return changed


def allows(strategy: Strategy, workers: int) -> bool:
    """Return whether the strategy supports this number of workers."""
    try:
        strategy.roles(workers)
    except ConfigurationError:
        return False
    return True
