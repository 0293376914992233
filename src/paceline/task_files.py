"""Tasks in files: a Python file is imported, and the task in it found."""

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
from paceline.task import Task
from paceline.task_checks import require
from paceline.user_code import user_code

__all__ = ["load_task"]


def load_task(spec: str | os.PathLike[str]) -> Task:
    """The task of `file.py` or `file.py:name`, where the name is of a Task or of a function that makes one.

    Without a name it is the variable `task`, else the only Task of the file, else what `task()` makes.
    """
    path, name = _split(os.fspath(spec))
    found = _find(_import_file(path), path, name)
    if isinstance(found, Task):
        return found
    with user_code(f"the task of {path} could not be made"):
        made = found()
    if isinstance(made, Task):
        return made
    raise ConfigurationError(f"{path}:{name or 'task'}", "must return a Task", made, "return pl.Task(…)")


def _split(spec: str) -> tuple[Path, str]:
    """A spec as the file's path and the task's name, which is empty where none is given."""
    text, separator, name = spec.rpartition(":")
    if not separator or Path(spec).is_file():
        text, name = spec, ""
    path = Path(text).expanduser()
    usable = path.is_file() and path.suffix == ".py"
    require(usable, "task", "must be a Python file that exists", text, "give it as file.py or file.py:name")
    return path.resolve(), name


def _import_file(path: Path) -> ModuleType:
    """The file as a module of its own name, which travels by value: no worker can import it by that name."""
    import cloudpickle

    name = f"paceline_task_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec, "a .py file has a spec"
    assert spec.loader, "and a loader"
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # for good: the file's functions may import their neighbours later
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
    """The Task that is meant, or the function that makes it."""
    values = vars(module)
    tasks = {id(value): key for key, value in values.items() if isinstance(value, Task)}
    if name:
        if name not in values:
            raise UnknownNameError(f"the task's name in {path}", name, tasks.values())
        found, bound = values[name], "must be a Task or make one"
        require(isinstance(found, Task) or callable(found), name, bound, found, "name another")
        return found
    default = values.get("task")
    if isinstance(default, Task):
        return default
    if len(tasks) > 1:
        names = ", ".join(sorted(tasks.values()))
        raise ConfigurationError("task", "must be one in its file, or named", names, f"give {path.name}:name")
    if tasks:
        return values[next(iter(tasks.values()))]
    require(callable(default), "task", "must be in its file", str(path), "write task = pl.Task(…) in it")
    return default
