"""Pages of the numbered errors: the text that `paceline explain` prints, and the fields of the class."""

from __future__ import annotations

import inspect

from paceline.cli.explain import codes, explanation
from paceline.errors import PacelineError
from paceline.schedules.collectives import matching
from paceline.testing import pipeline_orders

DEFINED_OUTSIDE_ERRORS = (matching.ScheduleError, pipeline_orders.OrderError)

BEGINNING = """\
# Errors

Every error that Paceline raises on purpose has a stable number, `error.code`. On the command line,
`paceline explain PL-033` prints its page. Exceptions are in `paceline.errors`; `pl.PacelineError` is the class of all.

"""


def classes() -> dict[str, type[PacelineError]]:
    """Return the classes of errors, by code."""
    assert DEFINED_OUTSIDE_ERRORS  # subclasses exist once they are imported
    found, waiting = {PacelineError.code: PacelineError}, [PacelineError]
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        found |= {kind.code: kind for kind in below if "code" in vars(kind)}
    return dict(sorted(found.items()))


def pages() -> dict[str, str]:
    made = {f"reference/errors/{code}.md": page(code) for code in codes()}
    rows = [f"- [{title(code)}]({code}.md)" for code in codes()]
    names = "\n".join(codes())
    contents = f"{BEGINNING}{chr(10).join(rows)}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    return {**made, "reference/errors/index.md": contents}


def title(code: str) -> str:
    return explanation(code).partition("\n")[0].removeprefix("# ")


def page(code: str) -> str:
    kind = classes()[code]
    bases = [base.__name__ for base in kind.__bases__ if base is not object]
    lines = [explanation(code), "## The exception", ""]
    lines += [f"`{kind.__module__}.{kind.__name__}`, a {' and '.join(f'`{base}`' for base in bases)}.", ""]
    lines += [inspect.getdoc(kind) or "", ""]
    fields = field_names(kind)
    if fields:
        lines += [f"Its fields: {', '.join(f'`{name}`' for name in fields)}.", ""]
    return "\n".join(lines)


def field_names(kind: type[PacelineError]) -> list[str]:
    """Return the names of the arguments of an error that its instances store."""
    if "__init__" not in vars(kind):
        return []
    names = inspect.signature(kind.__init__).parameters
    stored = inspect.getsource(kind.__init__)
    return [name for name in names if f"self.{name} = " in stored]
