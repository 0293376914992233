"""The reference of the public Python names, from their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import paceline as pl

GROUPS = {
    "Tasks and runs": ("train", "Task", "load_task", "Run", "STOP", "StopTraining", "register"),
    "Clusters": (
        "Local",
        "Simulated",
        "Ray",
        "Spark",
        "Launched",
        "Link",
        "ClusterDescription",
        "load_cluster",
    ),
    "Compare, predict, plan": (
        "compare",
        "Comparison",
        "Proof",
        "predict",
        "Prediction",
        "plan",
        "Plan",
        "calibrate",
        "Calibration",
    ),
    "Your own loop": (
        "prepare",
        "finish",
        "gather",
        "is_main",
        "log",
        "print",
        "rank",
        "resume",
        "save",
        "shard",
        "workers",
    ),
    "Programs and errors": ("run_program", "PacelineError"),
}
"""The names of `paceline`, by page. The modules have a page each."""

MODULES = ("times", "devices", "faults", "models", "optim", "codecs", "callbacks", "collectives")


def pages() -> dict[str, str]:
    made = {f"reference/{slug(title)}.md": group_page(title, names) for title, names in GROUPS.items()}
    made |= {f"reference/{name}.md": module_page(name) for name in MODULES}
    return made


def slug(title: str) -> str:
    return re.sub(r"[^a-z]+", "-", title.lower())


def group_page(title: str, names: tuple[str, ...]) -> str:
    entries = [line for name in names for line in described(f"paceline.{name}", getattr(pl, name))]
    return "\n".join([f"# {title}", "", "```python", "import paceline as pl", "```", "", *entries])


def module_page(name: str) -> str:
    module = getattr(pl, name)
    title = f"# pl.{name}"
    entries = [
        line
        for each in names_of(module)
        for line in described(f"paceline.{name}.{each}", getattr(module, each))
    ]
    return "\n".join([title, "", inspect.getdoc(module) or "", "", *entries])


def names_of(module: Any) -> list[str]:
    """Return the public names of a module: its `__all__`, or what is defined in it."""
    if isinstance(module, ModuleType) and hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (getattr(value, "__module__", None) == module.__name__)
        and (name.isupper() or isinstance(value, type | FunctionType))
    ]


def described(name: str, value: Any) -> Iterator[str]:
    """Yield the entry of a public name."""
    if inspect.isclass(value):
        yield from class_entry(name, value)
    elif callable(value) and hasattr(value, "__name__"):
        yield from block("py:function", f"{name}{signature(value)}", inspect.getdoc(value) or "")
    else:
        yield from block("py:data", name, f"`{value!r}`" if len(repr(value)) < 300 else "")


def class_entry(name: str, kind: type) -> Iterator[str]:
    inside = [inspect.getdoc(kind) or "", ""] if own_doc(kind) else []
    notes = notes_of(kind)
    if dataclasses.is_dataclass(kind):
        fields = [each for each in dataclasses.fields(kind) if not each.name.startswith("_")]
        for each in fields:
            text = each.metadata.get("help") or notes.get(each.name, "")
            inside += block("py:attribute", f"{each.name}", text, f":type: {plain_type(each.type)}")
    for member, value in members(kind):
        inside += member_entry(member, value)
    shown = f"{name}{signature(kind)}"
    yield from block("py:class", shown, "\n".join(inside), fence="::::")


def own_doc(kind: type) -> bool:
    """Return whether a class has its own docstring. A dataclass without one gets its signature."""
    return bool(kind.__doc__) and not (kind.__doc__ or "").startswith(f"{kind.__name__}(")


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public properties and methods that Paceline defines."""
    for name, value in inspect.getmembers_static(kind):
        home = next((base for base in kind.__mro__ if name in vars(base)), None)
        is_ours = home is not None and home.__module__.startswith("paceline")
        if is_ours and not name.startswith("_") and inspect.getdoc(value):
            yield name, value


def member_entry(name: str, value: Any) -> list[str]:
    if isinstance(value, property):
        return list(block("py:property", name, inspect.getdoc(value) or ""))
    if isinstance(value, classmethod | staticmethod):
        option = ":classmethod:" if isinstance(value, classmethod) else ":staticmethod:"
        function = value.__func__
        shown = f"{name}{signature(function, method=isinstance(value, classmethod))}"
        return list(block("py:method", shown, inspect.getdoc(function) or "", option))
    if isinstance(value, FunctionType):
        return list(block("py:method", f"{name}{signature(value, method=True)}", inspect.getdoc(value) or ""))
    return []


def block(kind: str, words: str, text: str, option: str = "", fence: str = ":::") -> Iterator[str]:
    """Yield a directive of Sphinx's Python domain."""
    yield f"{fence}{{{kind}}} {words}"
    yield from (option, "") if option else ("",)
    yield from text.splitlines()
    yield from (fence, "")


def signature(value: Any, *, method: bool = False) -> str:
    """Return the parameters and their defaults. Types are in the text, where they matter."""
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return ""
    words, starred = [], False
    for each in parameters[1:] if method else parameters:
        if each.name.startswith("_"):
            continue
        if each.kind is each.KEYWORD_ONLY and not starred:
            words.append("*")
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        mark = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        words.append(f"{mark}{each.name}{default(each)}")
    return f"({', '.join(words)})"


def default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return ""
    shown = repr(parameter.default)
    is_short = len(shown) <= 40 and not re.search(r"[<\n]", shown)
    return f"={shown}" if is_short else "=..."


def plain_type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return " ".join(text.split())


def notes_of(kind: type) -> dict[str, str]:
    """Return the strings that follow the fields of a class and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("paceline"):
            found |= _notes_in(base)
    return found


def _notes_in(kind: type) -> dict[str, str]:
    try:
        [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):
        return {}
    assert isinstance(body, ast.ClassDef)
    pairs = zip(body.body, body.body[1:], strict=False)
    return {
        field.target.id: inspect.cleandoc(note.value.value)
        for field, note in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(note, ast.Expr)
        and isinstance(note.value, ast.Constant)
        and isinstance(note.value.value, str)
    }
