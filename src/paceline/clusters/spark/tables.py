"""Rows of a DataFrame, read where they are: Spark writes each partition to an Arrow file in its executor's folder. The
ranks of that executor map the files into memory."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.clusters.hosts.table import whereabouts
from paceline.data.placed_rows import PlacedRows
from paceline.errors import ConfigurationError
from paceline.task.tables import Table

_SCHEMA = "partition int, rows long, folder string, host string"


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """Arrow file of one partition."""

    partition: int
    rows: int
    folder: str
    """Folder of the executor that has written the file."""
    host: str

    @property
    def path(self) -> str:
        return os.path.join(self.folder, f"{self.partition:08d}.arrow")


class StoredRows(PlacedRows):
    """Rows in Arrow files on the hosts of executors."""

    def __init__(self, partitions: Sequence[StoredPartition]) -> None:
        super().__init__([each.rows for each in partitions])
        self._partitions = tuple(partitions)

    def read(self, worker: int, places: Sequence[tuple[str, str]]) -> None:
        """Map the rows of this worker, and remove its files. `places` are folder and host of each worker."""
        owners = assigned(self._partitions, places)
        paths = [
            each.path
            for owner, each in zip(owners, self._partitions, strict=True)
            if owner == worker and each.rows
        ]
        self.place(owners, worker, len(places), _mapped(paths) if paths else ())


def store(context: Any, table: Table) -> StoredRows:
    """Write each partition of a table to the folder of its executor."""
    sql = importlib.import_module("pyspark.sql")
    frame = table.source
    if isinstance(frame, str | os.PathLike):
        frame = sql.SparkSession(context).read.parquet(os.path.abspath(frame))
    name = f"paceline-{secrets.token_hex(8)}"
    answers = frame.mapInArrow(lambda batches: write_partition(name, batches), _SCHEMA).collect()
    return StoredRows(
        sorted((StoredPartition(*answer) for answer in answers), key=lambda each: each.partition)
    )


def write_partition(name: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Write one partition, in its executor. Yield its description."""
    arrow: Any = importlib.import_module("pyarrow")
    number = importlib.import_module("pyspark").TaskContext.get().partitionId()
    folder = os.path.join(own_folder(), name)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    stored = StoredPartition(number, 0, folder, whereabouts().host)
    rows, writer = 0, None
    for batch in batches:
        writer = writer or arrow.ipc.new_file(stored.path, batch.schema)
        writer.write_batch(batch)
        rows += batch.num_rows
    if writer is not None:
        writer.close()
    columns = {"partition": [number], "rows": [rows], "folder": [folder], "host": [stored.host]}
    types = [
        ("partition", arrow.int32()),
        ("rows", arrow.int64()),
        ("folder", arrow.string()),
        ("host", arrow.string()),
    ]
    yield arrow.RecordBatch.from_pydict(columns, schema=arrow.schema(types))


def own_folder() -> str:
    """Return the local folder of this process's executor."""
    return os.environ["SPARK_LOCAL_DIRS"].split(",")[0]


def assigned(partitions: Sequence[StoredPartition], places: Sequence[tuple[str, str]]) -> list[int]:
    """Return the worker of each partition: one of its executor, or else one of its host, with the fewest rows."""
    owners, load = [0] * len(partitions), [0] * len(places)
    for each in sorted(partitions, key=lambda each: (-each.rows, each.partition)):
        near = [worker for worker, (folder, _) in enumerate(places) if os.path.dirname(each.folder) == folder]
        near = near or [worker for worker, (_, host) in enumerate(places) if host == each.host]
        if not near and each.rows:
            remedy = "use a worker for each executor, or repartition the DataFrame"
            bound = "must be on hosts that have a worker"
            raise ConfigurationError("data", bound, f"partition {each.partition}", remedy)
        owner = min(near, key=lambda worker: load[worker]) if near else 0
        owners[partitions.index(each)] = owner
        load[owner] += each.rows
    return owners


def _mapped(paths: Sequence[str]) -> tuple[Tensor, ...]:
    """Map the rows of these files, and remove the files: their bytes are freed when the process unmaps them."""
    arrow: Any = importlib.import_module("pyarrow")
    whole = paths[0] + ".whole"
    parts = [arrow.ipc.open_file(arrow.memory_map(path)).read_all() for path in paths]
    table = arrow.concat_tables(parts).combine_chunks()
    with arrow.ipc.new_file(whole, table.schema) as writer:
        writer.write_table(table)
    del parts, table
    mapped = arrow.ipc.open_file(arrow.memory_map(whole)).read_all()
    for path in (*paths, whole):
        os.unlink(path)
    with contextlib.suppress(OSError):  # other ranks of the executor still have files there
        os.rmdir(os.path.dirname(whole))
    return tuple(
        _tensor(name, column.chunk(0))
        for name, column in zip(mapped.column_names, mapped.columns, strict=True)
    )


def _tensor(name: str, column: Any) -> Tensor:
    """Return a column as a tensor of its memory: one dimension for numbers, two for arrays of the same length."""
    types: Any = importlib.import_module("pyarrow").types
    remedy = "cast it to numbers, or to arrays of numbers of the same length, without nulls"
    if column.null_count:
        raise ConfigurationError(f"data[{name!r}]", "must have no nulls", column.null_count, remedy)
    rows, is_list = len(column), types.is_list(column.type) or types.is_large_list(column.type)
    lengths = np.unique(column.value_lengths().to_numpy()) if is_list else [1]
    values = column.flatten() if is_list else column
    numeric = types.is_integer(values.type) or types.is_floating(values.type)
    if not numeric or len(lengths) > 1 or values.null_count:
        raise ConfigurationError(f"data[{name!r}]", "must be a column of numbers", str(column.type), remedy)
    array = values.to_numpy(zero_copy_only=True).reshape((rows, -1) if is_list else (rows,))
    return torch.from_numpy(array)


def remove(rows: StoredRows) -> None:
    """Remove what ranks on this host have not removed, because the run ended before they read it."""
    for folder in {each.folder for each in rows._partitions if each.host == whereabouts().host}:
        shutil.rmtree(folder, ignore_errors=True)
