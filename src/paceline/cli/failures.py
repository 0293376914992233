"""Exit codes: 0 success; 1 a run failed; 2 rejected before anything ran; 130 interrupted by Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from paceline.errors import ConfigurationError, PacelineError

FAILED = 1
REFUSED = 2
INTERRUPTED = 130  # shells report this for a process ended by SIGINT (2): 128 + 2


@contextmanager
def exit_codes(failure: int = FAILED) -> Iterator[None]:
    """Convert Paceline's exceptions to a message on stderr and an exit code, without a traceback."""
    try:
        yield
    except PacelineError as error:
        typer.echo("\n".join([f"error: {error}", *getattr(error, "__notes__", ()), _more(error)]), err=True)
        raise typer.Exit(REFUSED if isinstance(error, ConfigurationError) else failure) from None
    except KeyboardInterrupt as interrupt:
        typer.echo("; ".join(["interrupted", *map(str, interrupt.args)]), err=True)
        raise typer.Exit(INTERRUPTED) from None


def _more(error: PacelineError) -> str:
    return f"more: paceline explain {error.code}"
