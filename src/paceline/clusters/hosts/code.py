"""Transfer of the user's own code to hosts that may not have it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import cloudpickle


def own_path() -> list[str]:
    """Return the import path of the user's own modules: `sys.path` without installed packages."""
    entries = [os.path.abspath(entry) for entry in sys.path]
    return [entry for entry in entries if not (entry + os.sep).startswith(_installed())]


def own_modules() -> dict[str, tuple[str, str]]:
    """Return the loaded modules of the user: the relative file path of each one, and the hash of the file.

    Modules that are already pickled by value are left out.
    """
    by_value = cloudpickle.list_registry_pickle_by_value()
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if module is sys.modules.get("__main__") or name in by_value or not file or not file.endswith(".py"):
            continue
        if not os.path.abspath(file).startswith(_installed()) and os.path.isfile(file):
            with open(file, "rb") as opened:
                found[name] = (_place(name, file), hashlib.sha256(opened.read()).hexdigest())
    return found


def _place(name: str, file: str) -> str:
    """Return the relative path of a module's file below its path entry, such as a/b.py or a/__init__.py."""
    parts = name.split(".")
    is_package = os.path.basename(file) == "__init__.py"
    return os.path.join(*parts, "__init__.py") if is_package else os.path.join(*parts) + ".py"


@cache
def _installed() -> tuple[str, ...]:
    """Return the folders of software installed on each host separately: Python, its packages, paceline."""
    folders = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    folders.add(str(Path(__file__).parents[2]))
    base = os.path.join(sys.base_prefix, "lib", f"python{sys.version_info.major}{sys.version_info.minor}.zip")
    return (*(os.path.abspath(folder) + os.sep for folder in folders), base)


@contextlib.contextmanager
def travelling_by_value(names: Iterable[str]) -> Iterator[None]:
    """Pickle these modules by value in this block, so that their code is included."""
    modules = _modules(names)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _modules(names: Iterable[str]) -> list[ModuleType]:
    """Return each module once, although `sys.modules` may hold it under several names, as requests.packages does."""
    by_name = {module.__name__: module for module in map(sys.modules.__getitem__, names)}
    already = cloudpickle.list_registry_pickle_by_value()
    return [module for name, module in by_name.items() if name in sys.modules and name not in already]
