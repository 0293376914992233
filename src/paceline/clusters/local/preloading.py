"""Modules that the fork server imports once, so that the workers of this run and of later runs need not.

These are installed packages that the driver itself has imported: those named in the task, those imported by user
modules that the task names, and the strategy's module. The user's own modules are excluded, because they may be edited
between two runs. A process with threads cannot be forked. If an import starts threads, the server is replaced.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import ModuleType

import cloudpickle

TRACER = "torch.export._trace"
"""Module that torch imports when a process traces its first model: 400 modules in total."""

IDENTITY = "paceline.links.tcp.identity"
"""Module that creates keys for an encrypted run."""

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""The fork server sets this variable for itself, because numerical libraries size their thread pools when they are
loaded."""

_NAME = re.compile(rb"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = sysconfig.get_path("stdlib")
_OWN = __name__.partition(".")[0] + "."
_LOOKED_AT = 2**20  # bytes to search at both ends of a pickle; the bytes in between are samples


def installed_modules(pickled: bytes | memoryview) -> list[str]:
    """Return the installed modules of this process that unpickling will import, approximately."""
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    parts = (pickled[:_LOOKED_AT], pickled[_LOOKED_AT:][-_LOOKED_AT:])
    words = {word.decode() for part in parts for word in set(_NAME.findall(part))}
    pending = [name for name in words & sys.modules.keys() if name not in by_value]
    seen, found = set(pending), []
    while pending:
        module = sys.modules.get(name := pending.pop())
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or not isinstance(file, str):
            continue
        if name.startswith(_OWN) or any(part in _INSTALLED for part in PurePath(file).parts):
            found.append(name)
        elif not file.startswith(_STANDARD):
            new = _mentioned_in(module) & sys.modules.keys() - seen
            seen |= new
            pending += new
    return sorted(found)


def _mentioned_in(module: ModuleType) -> set[str]:
    """Return the modules that a module refers to, directly or through its objects."""
    values = list(vars(module).values())
    names = {v.__name__ if isinstance(v, ModuleType) else getattr(v, "__module__", None) for v in values}
    return {name for name in names if isinstance(name, str)}


def import_all(names: Iterable[str], path: list[str], environment: Mapping[str, str]) -> int:
    """Import these modules, with the driver's paths.

    Return the number of started threads. Failed imports are skipped.
    """
    sys.path[:] = path
    adopt_environment(environment)
    before = _threads()
    for name in names:
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except BaseException:  # any error: this process does not need the module
                continue
    gc.collect()
    gc.freeze()  # otherwise the garbage collector of a child would write to every page, and so copy it
    return _threads() - before


def adopt_environment(environment: Mapping[str, str]) -> None:
    """Make the environment of this process equal to the driver's, except for the number of OpenMP threads.

    The fork server serves several runs. A variable that the driver has deleted since then is deleted here too.
    """
    for name in os.environ.keys() - environment.keys() - {THREADS_VARIABLE}:
        del os.environ[name]
    os.environ.update(environment)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))
