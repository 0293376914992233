"""Loading a task from a Python file: the file is imported, and the Task in it is found."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.errors import ConfigurationError, UnknownNameError
from paceline.system.user_code import user_code
from paceline.task.checks import require
from paceline.task.task import Task


def load_task(spec: str | os.PathLike[str]) -> Task:
    """Load the task of `file.py` or `file.py:name`. The name refers to a Task or to a function that returns one.

    Without a name, return the variable `task` if it is a Task, else the only Task in the file, else `task()`.
    """
    path, name = _split(os.fspath(spec))
    found = _find(_import_file(path), path, name)
    if isinstance(found, Task):
        return found
    with user_code(f"the task of {path} could not be created"):
        made = found()
    if isinstance(made, Task):
        return made
    raise ConfigurationError(f"{path}:{name or 'task'}", "must return a Task", made, "return pl.Task(…)")


def _split(spec: str) -> tuple[Path, str]:
    """Split a spec into the file's path and the task's name. The name is empty if the spec has none."""
    text, separator, name = spec.rpartition(":")
    if not separator or Path(spec).is_file():
        text, name = spec, ""
    path = Path(text).expanduser()
    usable = path.is_file() and path.suffix == ".py"
    require(usable, "task", "must be a Python file that exists", text, "give it as file.py or file.py:name")
    return path.resolve(), name


def _import_file(path: Path) -> ModuleType:
    """Import the file under a unique module name. It is pickled by value, because workers cannot import that name."""
    import cloudpickle

    name = f"paceline_task_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec, "a .py file always has a spec"
    assert spec.loader, "and a loader"
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # never removed: the file's functions may import from its folder later
    sys.modules[name] = module
    try:
        with user_code(f"{path} could not be loaded"):
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ConfigurationError):
            error.add_note(_where(error, path))
        raise
    cloudpickle.register_pickle_by_value(module)
    return module


def _where(error: BaseException, path: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"in {path}" + (f", line {lines[-1]}" if lines else "")


def _find(module: ModuleType, path: Path, name: str) -> Any:
    """Return the requested Task, or the function that makes it."""
    values = vars(module)
    tasks = {id(value): key for key, value in values.items() if isinstance(value, Task)}
    if name:
        if name not in values:
            raise UnknownNameError(f"the task's name in {path}", name, tasks.values())
        found, bound = values[name], "must be a Task or return one"
        require(isinstance(found, Task) or callable(found), name, bound, found, "name another")
        return found
    default = values.get("task")
    if isinstance(default, Task):
        return default
    if len(tasks) > 1:
        names = ", ".join(sorted(tasks.values()))
        bound = "must be the only one in its file, or be named"
        raise ConfigurationError("task", bound, names, f"write {path.name}:name")
    if tasks:
        return values[next(iter(tasks.values()))]
    require(callable(default), "task", "must be in its file", str(path), "write task = pl.Task(…) in it")
    return default
