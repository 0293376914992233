"""`--ray [ADDRESS]`: an option with an optional value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typer.core import TyperCommand

_OPTION = "--ray"


class CommandWithRay(TyperCommand):
    """A command that takes the word after `--ray` as the Ray address, unless that word is an option or a Python
    file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # In Typer an option either requires a value or never takes one.
        return super().parse_args(ctx, list(_joined(args)))


def _joined(words: Sequence[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if word != _OPTION:
            yield word
            continue
        following = next(rest, None)
        if following is not None and _is_address(following):
            yield f"{_OPTION}={following}"
        else:
            yield f"{_OPTION}="
            yield from () if following is None else (following,)


def _is_address(word: str) -> bool:
    return not word.startswith("-") and not word.partition(".py")[1]


class ScriptCommandWithRay(CommandWithRay):
    """A command that runs a script. Words after the script's name are arguments of the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        script = next((place for place, word in enumerate(args) if word.endswith(".py")), len(args))
        return TyperCommand.parse_args(self, ctx, [*_joined(args[:script]), *args[script:]])
