"""The strategies of a comparison, given as text or as objects."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.context import Strategy
from paceline.errors import ConfigurationError
from paceline.strategies import describe, parse, spell

FORMS = "for example all-reduce,k-sync:k=3,async; `paceline strategies` lists them"


def split_strategies(text: str, argument: str = "strategies") -> list[str]:
    """Split a list such as "all-reduce,k-sync:k=3,servers=2,async" into strategies.

    Commas separate strategies, and also the parameters of one strategy: an item `parameter=value` belongs to the
    strategy before it.
    """
    found: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            raise ConfigurationError(argument, "must be strategies with commas between them", text, FORMS)
        if _is_parameter(part) and not found:
            raise ConfigurationError(argument, "must begin with a strategy's name", part, FORMS)
        if _is_parameter(part):
            found[-1] += ("," if ":" in found[-1] else ":") + part
        else:
            found.append(part)
    return found


def _is_parameter(part: str) -> bool:
    name, equals, _ = part.partition("=")
    return bool(equals) and ":" not in name


def named_strategies(
    strategies: str | Strategy | Sequence[str | Strategy], workers: int
) -> dict[str, str | Strategy]:
    """Return each strategy by its text. All are parsed here, so that errors occur before the first run."""
    if isinstance(strategies, str):
        strategies = split_strategies(strategies)
    elif isinstance(strategies, Strategy):
        strategies = [strategies]
    if not strategies:
        raise ConfigurationError("strategies", "must be at least one", list(strategies), FORMS)
    named: dict[str, str | Strategy] = {}
    for strategy in strategies:
        parsed = parse(strategy)
        parsed.roles(workers)
        name = spell(strategy) if isinstance(strategy, str) else describe(parsed)
        if name in named:
            raise ConfigurationError(
                "strategies", "must each be given once", name, "use repeat for several runs"
            )
        named[name] = strategy
    return named
