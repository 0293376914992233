"""Runs as files for TensorBoard: live values during a run, and every step after its end."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.files import check_directory
from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from paceline.runs.run import Progress, Run


class Board:
    """A directory for TensorBoard. Missing requirements are reported on creation."""

    def __init__(self, directory: Path) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            remedy = "install it (pip install tensorboard), or omit --tensorboard"
            bound = "needs the package tensorboard, which is not installed"
            raise ConfigurationError("--tensorboard", bound, str(directory), remedy)
        check_directory("--tensorboard", directory)
        self._directory = directory

    @contextmanager
    def page(self, name: str) -> Iterator[Page]:
        """Yield the page of one run, in a folder named after the run."""
        from paceline.callbacks.loggers import tensorboard_writer

        folder = self._directory / re.sub(r"[^A-Za-z0-9=.-]+", "_", name)
        writer = tensorboard_writer(folder)
        try:
            yield Page(writer)
        finally:
            writer.close()


class Page:
    """The TensorBoard files of one run."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def show(self, progress: Progress) -> None:
        """Write the progress of the run.

        It is called about ten times a second, so most steps are not written here.
        """
        values = {"loss": progress.loss, "metric": progress.metric}
        if progress.seconds > 0:
            values["samples_per_s"] = progress.samples / progress.seconds
        self._add("live", progress.step, values)

    def write(self, run: Run) -> None:
        """Write every step of a finished run."""
        from paceline.callbacks.loggers import figures

        for record in run.history:
            self._add("run", record.step, dict(figures(record)))

    def _add(self, group: str, step: int, values: dict[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(f"{group}/{name}", value, step)
