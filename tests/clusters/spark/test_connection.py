"""Wrong arguments, and a Spark that cannot run all ranks at the same time, are refused."""

import sys

import pytest
from clusters.spark.executors import needs_spark
from refusals import has, refused
from tasks import a_task

import paceline as pl


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"master": ""}, "master"),
        ({"master": 7077}, "master"),
        ({"workers": 0}, "workers"),
        ({"conf": ["spark.executor.memory"]}, "conf"),
        ({"conf": {"spark.executor.cores": 2}}, "conf"),
        ({"encrypt": "yes"}, "encrypt"),
        ({"ports": (20000, 20100)}, "ports"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"slow": {1: 0.5}}, "slow[1]"),
    ],
)
def test_a_bad_argument_is_refused_where_it_is_made(given, argument):
    with refused(argument):
        pl.Spark(**given)


def test_without_pyspark_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with refused("pl.Spark", remedy=has("paceline[spark]", "Java 17")):
        pl.train(a_task(), "all-reduce", pl.Spark(workers=2), steps=1)


@needs_spark
@pytest.mark.parametrize("master", ["local[1]", "local-cluster[1,1,1024]"])
def test_too_few_slots_are_refused_before_spark_starts(master):
    with refused("workers", "2 ranks", bound=has(1)):
        pl.train(a_task(), "all-reduce", pl.Spark(master, workers=2), steps=1)


@needs_spark
def test_dynamic_allocation_is_refused():
    conf = {"spark.dynamicAllocation.enabled": "true"}
    with refused("spark.dynamicAllocation.enabled", "true"):
        pl.train(a_task(), "all-reduce", pl.Spark(workers=2, conf=conf), steps=1)


def test_a_description_of_the_cluster():
    cluster = pl.Spark("spark://head:7077", workers=2, threads=1)
    assert str(cluster) == "2 workers on Spark (spark://head:7077), 1 thread a rank"
