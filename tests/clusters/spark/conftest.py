import os

import pytest
from clusters.spark.executors import started_context


@pytest.fixture(scope="session")
def executors_folder(tmp_path_factory):
    """Folder with all files of the executors."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(executors_folder):
    """An active SparkContext with two executors of two slots each."""
    context = started_context(executors_folder)
    yield context
    context.stop()
    for name in ("PYSPARK_PYTHON", "SPARK_WORKER_DIR"):
        os.environ.pop(name)
