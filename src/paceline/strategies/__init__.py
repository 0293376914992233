"""Training strategies: one file per algorithm, under its name in the literature. `registry/` has the table."""

from paceline.strategies.registry.table import (
    ALIASES,
    ENTRY_POINTS,
    STRATEGIES,
    describe,
    find,
    is_known,
    load_entry_points,
    parse,
    register,
    spell,
)

__all__ = [
    "ALIASES",
    "ENTRY_POINTS",
    "STRATEGIES",
    "describe",
    "find",
    "is_known",
    "load_entry_points",
    "parse",
    "register",
    "spell",
]
