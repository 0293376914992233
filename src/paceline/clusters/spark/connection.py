"""Connection to Spark: use the active context, or create one for the time of a run. Problems are reported at once.

Spark itself repeats the check for free slots for ten minutes, and reports dynamic allocation when the job starts.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.errors import ConfigurationError
from paceline.system import interrupts

_POLL_S = 0.1
_ENDED_S = 20.0  # time for the Java process to exit
_DYNAMIC = "spark.dynamicAllocation.enabled"
_OWN = {
    "spark.app.name": "paceline",
    "spark.log.level": "OFF",  # Paceline reports what went wrong
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_ON_THIS_MACHINE = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def import_spark() -> Any:
    """Import pyspark, which is an optional dependency. It needs Java."""
    try:
        pyspark = importlib.import_module("pyspark")
    except ImportError as error:
        remedy = "pip install 'paceline[spark]', and install Java 17"
        raise ConfigurationError("pl.Spark", "needs the package pyspark", f"{error}", remedy) from None
    return pyspark


@contextlib.contextmanager
def connected(master: str | None, ranks: int, conf: Mapping[str, str], deadline_s: float) -> Iterator[Any]:
    """Connect to Spark for the time of a run, with room for all ranks."""
    pyspark = import_spark()
    with contextlib.ExitStack() as stack:
        context = pyspark.SparkContext._active_spark_context
        if context is None:
            stack.callback(_end_java, pyspark, had_java=pyspark.SparkContext._gateway is not None)
            master = master or f"local[{ranks}]"
            _check_slots(_slots_of(master), ranks)
            context = _start(pyspark, master, conf)
            stack.callback(context.stop)
        else:
            _check_same(context, master, conf)
        _check_static(context)
        _wait_for_slots(context, ranks, deadline_s)
        yield context


def _start(pyspark: Any, master: str, conf: Mapping[str, str]) -> Any:
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        remedy = "install Java 17 (apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
        raise ConfigurationError("pl.Spark", "needs Java", "no java in PATH", remedy)
    options = {**_OWN, **(_ON_THIS_MACHINE if master.startswith("local") else {}), **conf}
    options.pop("spark.master", None)
    if options.get(_DYNAMIC) == "true":
        raise _dynamic()
    handler, python = signal.getsignal(signal.SIGINT), os.environ.get("PYSPARK_PYTHON")
    if master.startswith("local"):
        os.environ.setdefault(
            "PYSPARK_PYTHON", sys.executable
        )  # Spark's default is the first python3 in PATH
    try:
        return pyspark.SparkContext(conf=pyspark.SparkConf().setMaster(master).setAll(list(options.items())))
    except Exception as error:
        remedy = "is a Spark master running there? (" + str(error).strip().splitlines()[-1].strip() + ")"
        raise ConfigurationError("master", "must be a Spark that starts", master, remedy) from None
    finally:
        if python is None:
            os.environ.pop("PYSPARK_PYTHON", None)
        with contextlib.suppress(ValueError):  # another thread than the main one has no handlers
            signal.signal(signal.SIGINT, handler)  # Spark installs its own


def _end_java(pyspark: Any, *, had_java: bool) -> None:
    """End the Java process if this run has started it."""
    gateway = pyspark.SparkContext._gateway
    if had_java or gateway is None:
        return
    gateway.shutdown()
    pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()  # it exits when its input ends
        with contextlib.suppress(Exception):
            process.wait(_ENDED_S)
        if process.poll() is None:
            process.kill()


def _check_same(context: Any, master: str | None, conf: Mapping[str, str]) -> None:
    if master is not None and master != context.master:
        remedy = "omit it, or stop the active SparkContext before"
        raise ConfigurationError("master", f"must be the active context's, {context.master}", master, remedy)
    if conf:
        remedy = "set the properties when you create the SparkContext, and omit conf"
        raise ConfigurationError("conf", "must be empty if a SparkContext is active", dict(conf), remedy)


def _check_static(context: Any) -> None:
    if context.getConf().get(_DYNAMIC, "false") == "true":
        raise _dynamic()


def _dynamic() -> ConfigurationError:
    remedy = "set it to false: all ranks run at the same time, on a fixed number of executors"
    return ConfigurationError(_DYNAMIC, "must be false for pl.Spark", "true", remedy)


def _wait_for_slots(context: Any, ranks: int, deadline_s: float) -> None:
    """Wait until the executors have a slot for each rank. Refuse at once if they never will."""
    _check_slots(_slots_of(context.master), ranks)
    until_s = time.monotonic() + deadline_s
    while (free := _slots(context)) < ranks:
        interrupts.safe_point()
        if time.monotonic() > until_s:
            _check_slots(free, ranks)
        time.sleep(_POLL_S)


def _check_slots(slots: int | None, ranks: int) -> None:
    if slots is not None and slots < ranks:
        bound = f"must fit in Spark's {slots} task slots, one for each rank"
        remedy = "all ranks run at the same time: use fewer workers, or more executors"
        raise ConfigurationError("workers", bound, f"{ranks} ranks", remedy)


def _slots(context: Any) -> int:
    """Return how many tasks run at the same time on the present executors. Spark checks barrier stages by this
    number."""
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    return int(scala.maxNumConcurrentTasks(profile))


def _slots_of(master: str) -> int | None:
    """Return the slots that a master on this machine will have; None if unknown."""
    if found := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master):
        return int(found[1]) * int(found[2])
    if found := re.fullmatch(r"local\[(\d+)(,.*)?\]", master):
        return int(found[1])
    return None
