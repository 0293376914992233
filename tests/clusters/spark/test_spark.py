"""Ranks in the barrier tasks of a Spark job give the results of other clusters, and end with it."""

import os
import re
import signal

import numpy as np
import pytest
from clusters.spark.executors import executors, in_one_process, needs_spark, on_spark
from processes import wait_until
from refusals import has, raised, refused
from tasks import a_task, simulated

import paceline as pl
from paceline.clusters.spark.driver import _Tasks
from paceline.errors import PeerLost, RunError, WorkerError

pytestmark = [in_one_process, pytest.mark.slow, needs_spark]


@pytest.mark.parametrize(("spec", "workers"), [("all-reduce", 4), ("sync", 2), ("decentralized", 4)])
def test_a_run_gives_the_bits_of_the_simulation(spark, spec, workers):
    task = a_task()
    run = pl.train(task, spec, on_spark(workers=workers), steps=3)
    expected = pl.train(task, spec, simulated(workers), steps=3)
    assert all(np.array_equal(a, b) for a, b in zip(run.parameters, expected.parameters, strict=True))
    assert run.environment["spark"] == spark.version


def test_messages_between_ranks_may_be_encrypted(spark):
    run = pl.train(a_task(), "all-reduce", on_spark(workers=2, encrypt=True), steps=1)
    assert run.environment["link"] == "encrypted TCP"


def test_an_error_in_a_task_is_raised_here_and_the_context_stays_open(spark):
    def fails(outputs, targets):
        raise ZeroDivisionError("the loss")

    with raised(WorkerError, "ZeroDivisionError", "the loss"):
        pl.train(a_task(loss=fails), "all-reduce", on_spark(workers=2), steps=1)
    assert spark.parallelize([1, 2]).sum() == 3


def test_too_few_slots_are_refused(spark):
    with refused("workers", "5 ranks", bound=has(4)):
        pl.train(a_task(), "all-reduce", on_spark(workers=5), steps=1)


def test_another_master_than_the_active_one_is_refused(spark):
    with refused("master", "local[4]", bound=has("local-cluster[2,2,1024]")):
        pl.train(a_task(), "all-reduce", on_spark(master="local[4]"), steps=1)


def test_a_failed_task_is_never_repeated(spark, tmp_path):
    def fails():
        (tmp_path / os.urandom(8).hex()).touch()
        raise ZeroDivisionError("once")

    with _Tasks(spark, fails, 2) as started, raised(RunError, "ZeroDivisionError", "once"):
        started.result(300.0)
    assert len(list(tmp_path.iterdir())) <= 2


def test_a_killed_executor_is_named(spark):
    killed = []

    def kill(progress):
        if progress.step >= 2 and not killed:
            killed.append("1" if "1" in executors() else max(executors()))
            os.kill(executors()[killed[0]], signal.SIGKILL)

    with pytest.raises(PeerLost) as caught:
        pl.train(a_task(), "all-reduce", on_spark(), steps=10**6, progress=kill)
    assert re.search(rf"executor {killed[0]}\b", str(caught.value)), caught.value
    # Spark starts another executor.
    wait_until(lambda: len(executors()) == 2, "Spark has two executors")
    assert pl.train(a_task(), "all-reduce", on_spark(), steps=1).steps == 1
