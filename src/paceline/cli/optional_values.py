"""`--ray [ADDRESS]` and `--spark [MASTER]`: options with an optional value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typer.core import TyperCommand

_OPTIONS = ("--ray", "--spark")


class CommandWithRunners(TyperCommand):
    """A command that takes the word after `--ray` as the Ray address, unless that word is an option or a Python
    file. The word after `--spark` is the Spark master."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # In Typer an option either requires a value or never takes one.
        return super().parse_args(ctx, list(_joined(args)))


def _joined(words: Sequence[str]) -> Iterator[str]:
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        if word not in _OPTIONS:
            yield word
        else:
            yield f"{word}={rest.pop() if rest and _is_address(rest[-1]) else ''}"


def _is_address(word: str) -> bool:
    return not word.startswith("-") and not word.partition(".py")[1]


class ScriptCommandWithRunners(CommandWithRunners):
    """A command that runs a script. Words after the script's name are arguments of the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        script = next((place for place, word in enumerate(args) if word.endswith(".py")), len(args))
        return TyperCommand.parse_args(self, ctx, [*_joined(args[:script]), *args[script:]])
