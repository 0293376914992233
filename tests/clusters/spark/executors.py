"""Helpers of the tests of pl.Spark: a context with executors on this machine."""

import importlib.util
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from processes import marked

import paceline as pl

WITHOUT = "Spark needs pip install 'paceline[spark]' and Java 17"
needs_spark = pytest.mark.skipif(
    importlib.util.find_spec("pyspark") is None or shutil.which("java") is None, reason=WITHOUT
)
in_one_process = pytest.mark.xdist_group("spark")
"""Mark for modules with tests that share the executors: the tests run in one process, which starts them once."""

MARK = f"PACELINE_SPARK_TEST={os.getpid()}"


def on_spark(**options):
    """A cluster with long timeouts for a busy machine."""
    return pl.Spark(**({"workers": 4, "deadline_s": 300.0, "threads": 1} | options))


def started_context(folder):
    """Start a Spark with two executors of two slots each. All its files are in the folder."""
    import pyspark

    conf = pyspark.SparkConf().setMaster("local-cluster[2,2,1024]").setAppName("tests")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "OFF",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        conf.set(name, value)
    name, value = MARK.split("=")
    os.environ |= {name: value, "PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(folder / "work")}
    handler = signal.getsignal(signal.SIGINT)
    try:
        return pyspark.SparkContext(conf=conf)
    finally:
        signal.signal(signal.SIGINT, handler)


def executors():
    """Process ids of the Java processes of the executors, by the executor's name."""
    found = {}
    for pid in marked(MARK):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        if "CoarseGrainedExecutorBackend" in words and (name := re.search(r"--executor-id (\S+)", words)):
            found[name[1]] = pid
    return found
