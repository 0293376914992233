"""Tables of Spark as training data: ranks read partitions where they are, and the weights are those of `single`."""

import pytest
import torch
from clusters.spark.executors import in_one_process, needs_spark, on_spark
from refusals import has, raised, refused
from torch import nn

import paceline as pl
from paceline.clusters.spark.tables import StoredPartition, assigned
from paceline.errors import ConfigurationError, PacelineError

ROWS = (300, 1, 0, 250, 40, 310, 100)
"""Rows of each partition: 1,001 in all."""


def rows_of(partition):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(ROWS[partition], 3, generator=generator, dtype=torch.float64)
    return [(row.tolist(), float(row.sum()) + 1.0) for row in inputs]


def as_tensors():
    rows = [row for partition in range(len(ROWS)) for row in rows_of(partition)]
    inputs, targets = zip(*rows, strict=True)
    return torch.tensor(inputs, dtype=torch.float64), torch.tensor(targets, dtype=torch.float64)


def loss(outputs, targets):
    return nn.functional.mse_loss(outputs.squeeze(-1), targets)


def task_of(data, **changes):
    given = {
        "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double(),
        "data": data,
        "loss": loss,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "batch_size": 90,
    }
    return pl.Task(**(given | changes))


def stored(*places):
    return [StoredPartition(number, rows, *place) for number, (rows, *place) in enumerate(places)]


def test_partitions_go_to_workers_of_their_executor_with_the_fewest_rows():
    partitions = stored(
        (5, "/a/x", "h"), (4, "/a/x", "h"), (3, "/a/x", "h"), (9, "/b/x", "i"), (0, "/c/x", "j")
    )
    assert assigned(partitions, [("/a", "h"), ("/a", "h"), ("/b", "i")]) == [0, 1, 1, 2, 0]


def test_partitions_of_an_executor_without_a_worker_go_to_a_worker_of_its_host():
    assert assigned(stored((5, "/c/x", "h"), (4, "/b/x", "i")), [("/a", "h"), ("/b", "i")]) == [0, 1]
    with refused("data", bound=has("hosts")):
        assigned(stored((5, "/c/x", "j")), [("/a", "h")])


def test_a_path_without_parquet_data_is_refused(tmp_path):
    with refused("data"):
        task_of(tmp_path / "missing.parquet")


@needs_spark
def test_another_cluster_refuses_a_table(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    inputs, targets = as_tensors()
    columns = {"inputs": inputs.tolist(), "targets": targets.tolist()}
    parquet.write_table(parquet.core.pa.table(columns), tmp_path / "rows.parquet")
    with raised(PacelineError, "pl.Spark"):
        pl.train(task_of(tmp_path / "rows.parquet"), "all-reduce", pl.Local(workers=2), steps=1)


@pytest.fixture(scope="module")
def expected():
    return pl.train(task_of(as_tensors()), "single", pl.Local(workers=1, threads=1), epochs=2)


@pytest.fixture
def frame(spark):
    from pyspark.sql import SparkSession

    partitions = [rows_of(number) for number in range(len(ROWS))]
    rows = spark.parallelize(range(len(ROWS)), len(ROWS)).flatMap(lambda number: partitions[number])
    return SparkSession(spark).createDataFrame(rows, "inputs array<double>, target double")


def files_in(folder):
    return [path for path in folder.rglob("*") if "paceline" in str(path.relative_to(folder))]


@needs_spark
@in_one_process
@pytest.mark.slow
@pytest.mark.parametrize(("spec", "workers"), [("all-reduce", 4), ("sync", 2)])
def test_uneven_and_empty_partitions_give_the_weights_of_single(
    frame, expected, executors_folder, spec, workers
):
    run = pl.train(task_of(frame), spec, on_spark(workers=workers), epochs=2)
    assert run.steps == expected.steps
    torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=1e-12)
    assert files_in(executors_folder) == []


@needs_spark
@in_one_process
@pytest.mark.slow
def test_a_parquet_folder_gives_the_weights_of_single(frame, tmp_path):
    path = str(tmp_path / "rows")
    frame.repartition(3).write.parquet(path)
    data = frame.sparkSession.read.parquet(path).collect()
    inputs, targets = zip(*data, strict=True)
    tensors = torch.tensor(inputs, dtype=torch.float64), torch.tensor(targets, dtype=torch.float64)
    expected = pl.train(task_of(tensors), "single", pl.Local(workers=1, threads=1), steps=3)
    run = pl.train(task_of(path), "all-reduce", on_spark(workers=2), steps=3)
    torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=1e-12)


@needs_spark
@in_one_process
@pytest.mark.slow
def test_a_strategy_whose_workers_need_other_rows_is_refused(frame, executors_folder):
    with raised(ConfigurationError, "data-parallel"):
        pl.train(task_of(frame), "layers", on_spark(workers=2), steps=1)
    assert files_in(executors_folder) == []
