"""Tables as training data: a DataFrame of Spark, or the path of a Parquet file or folder. `pl.Spark` reads them."""

from __future__ import annotations

import importlib
import os
from typing import Any, NoReturn

from paceline.errors import ConfigurationError


def is_table(data: object) -> bool:
    """Return whether the data is a DataFrame of Spark or a path."""
    return isinstance(data, str | os.PathLike) or (
        type(data).__module__.startswith("pyspark.sql") and hasattr(data, "mapInArrow")
    )


class Table:
    """A table that no rank has read yet. Each column is a tensor of the batch, and the last one is the target."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self._rows: int | None = None

    def __len__(self) -> int:
        if self._rows is None:
            is_path = isinstance(self.source, str | os.PathLike)
            self._rows = _count_rows(self.source) if is_path else int(self.source.count())
        return self._rows

    def __getitem__(self, number: int) -> NoReturn:
        raise self._error()

    def __reduce__(self) -> NoReturn:
        raise self._error()

    def _error(self) -> ConfigurationError:
        remedy = "train with pl.Spark, or collect the rows into tensors"
        what = str(self.source) if isinstance(self.source, str | os.PathLike) else "a DataFrame"
        return ConfigurationError("data", "must not be a table on this cluster", what, remedy)


def _count_rows(path: str | os.PathLike[str]) -> int:
    remedy = "give a Parquet file, or a folder of them, and pip install 'paceline[spark]'"
    bound = "must be the path of Parquet data"
    try:
        dataset: Any = importlib.import_module("pyarrow.dataset")
        return int(dataset.dataset(os.fspath(path), format="parquet").count_rows())
    except (ImportError, OSError, ValueError) as error:
        raise ConfigurationError("data", bound, f"{path} ({error})", remedy) from None
