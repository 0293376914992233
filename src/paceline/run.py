"""What happened in a run: history, trace, model; and how it is kept on disk."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError
from paceline.metrics import HIGHER, reaches
from paceline.reading import Folder
from paceline.run_files import FORMAT, RunFiles, read_run, write_run
from paceline.run_words import as_html, as_text, in_short
from paceline.trace import Trace
from paceline.writing import finite, write_folder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.task import Task

__all__ = ["FORMAT", "Progress", "Record", "Run"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come: what a progress callback is given, ten times a second at the most."""

    step: int
    steps: int
    loss: float
    samples: int
    seconds: float
    metric: float | None = None
    slow_rank: int | None = None
    """The rank that computes the slowest, if one is much slower than the others."""
    slowness: float = 1.0
    """How many times as long as the others it takes. Infinite if it has not ended a computation yet."""


@dataclass(frozen=True, slots=True)
class Record:
    """One step. Also readable as a mapping: `record["loss"]`."""

    step: int
    """Updates done so far, this one included."""
    seconds: float
    """Since the run began, time spent on evaluation left out."""
    loss: float
    """Mean over the samples of this step, before its update.

    NaN where no mathematics was done, and where the step had no samples: that happens to a worker that updates at its
    own pace and whose slice of the batch is empty. Also where such a worker was lost while it made this update.
    """
    metric: float | None
    """The task's metric on its test data, in those steps after which it was evaluated."""
    samples: int
    """Samples seen so far, over all workers."""
    bytes: int
    """Bytes sent so far, over all ranks."""
    extra: dict[str, float] = field(default_factory=dict)
    """What the strategy reported besides."""
    epoch: float | None = None
    """Passes over the data so far: samples seen by samples there are. None in runs that older versions saved."""

    def __getitem__(self, key: str) -> Any:
        if key in self.extra:
            return self.extra[key]
        if key not in self.__slots__:
            raise KeyError(key)
        return getattr(self, key)

    def keys(self) -> Iterator[str]:
        yield from (f.name for f in dataclasses.fields(self) if f.name != "extra")
        yield from self.extra


@dataclass(slots=True, kw_only=True, repr=False)
class Run:
    """What happened. As text it is five lines; a notebook shows a table and curves."""

    strategy: str
    cluster: str
    seed: int
    history: list[Record]
    trace: Trace
    seconds: float
    """On the run's own clock (virtual in a simulation), time spent on evaluation left out."""
    bytes_sent: list[int]
    messages_sent: list[int]
    staleness: dict[int, int]
    """How many gradients were how stale when they were applied."""
    memory: list[dict[str, int]] = field(default_factory=list)
    """Of each rank: the bytes of its parameters, gradients, optimizer, activations and buffers, and their total, when
    that was highest; see docs/memory.md. Empty in runs that older versions saved."""
    holds: list[str] = field(default_factory=list)
    """Of each rank: what it holds of the model, in words, such as "stage 1 of 2: layers 4 … 7". Empty where all hold
    all of it."""
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Ranks that died and that the run went on without, and the step of each."""
    peer_metrics: dict[int, float] = field(default_factory=dict)
    """Of each worker with parameters of its own: their metric at the end, if the strategy was asked for it."""
    target: float | None = None
    better: str = HIGHER
    """Which way the metric is better: "higher" or "lower"."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """What was learned: model, samples, batch size, loss, metric and target. Only runs of one task are compared."""
    environment: dict[str, str] = field(default_factory=dict)
    """Versions, machine and command that the run was made with; see `environment.snapshot`."""
    state: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """The final model's state by name."""
    ema_state: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """The same with the moving average of the weights, where the task asks for one (`Task(ema=…)`)."""
    best_state: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """The state of the model whose metric was best, where `pl.callbacks.KeepBest` looked."""
    best_metric: float | None = None
    other_metrics: list[str] = field(default_factory=list, repr=False)
    """The names of the task's metrics besides the first: their values are in the history, under these names."""
    trainable: list[str] = field(default_factory=list, repr=False)
    """The names of the trainable parameters, in the order of registration."""
    module: nn.Module | None = field(default=None, repr=False)

    @property
    def model(self) -> nn.Module:
        """The trained model. After `Run.load` it is there if the task was given."""
        if self.module is None:
            raise ConfigurationError(
                "task",
                "is needed to rebuild the model of a loaded run",
                None,
                "call Run.load(dir, task=…), or use run.state",
            )
        return self.module

    @property
    def parameters(self) -> Tensor:
        """All trainable parameters of the final model, one flat CPU tensor."""
        import torch

        if not self.state:
            remedy = 'the run did no mathematics: use math="real"'
            raise ConfigurationError("math", "must be real for a run to have parameters", "none", remedy)
        return torch.cat([self.state[name].reshape(-1) for name in self.trainable])

    @property
    def steps(self) -> int:
        return self.history[-1].step if self.history else 0

    @property
    def epochs(self) -> float | None:
        """Passes over the data: samples seen by samples there are."""
        return self.history[-1].epoch if self.history else None

    @property
    def step_seconds(self) -> float:
        """Mean seconds a step."""
        return self.seconds / self.steps if self.steps else math.nan

    @property
    def metric(self) -> float | None:
        """The metric when it was last evaluated."""
        return next((r.metric for r in reversed(self.history) if r.metric is not None), None)

    def last(self, name: str) -> float | None:
        """What the history last has under a name of its own: another metric, or what a step or a strategy told."""
        return next((r.extra[name] for r in reversed(self.history) if name in r.extra), None)

    @property
    def loss(self) -> float:
        """Of the last step that had samples. NaN where there is none, or no mathematics was done."""
        losses = (record.loss for record in reversed(self.history))
        return next((loss for loss in losses if not math.isnan(loss)), math.nan)

    @property
    def seconds_to_target(self) -> float | None:
        """When the metric was first seen at its target; None if never."""
        record = self.record_at_target
        return None if record is None else record.seconds

    @property
    def record_at_target(self) -> Record | None:
        """The first step after which the metric was seen at its target; None if there is none."""
        return next((r for r in self.history if reaches(r.metric, self.target, self.better)), None)

    @property
    def reached_target(self) -> bool:
        return self.seconds_to_target is not None

    def __repr__(self) -> str:
        return in_short(self)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def as_dict(self) -> dict[str, Any]:
        """The run in figures, ready for JSON."""
        summary = self.trace.summary()
        last = self.history[-1] if self.history else None
        return {
            "strategy": self.strategy,
            "cluster": self.cluster,
            "seed": self.seed,
            "seconds": self.seconds,
            "steps": self.steps,
            "step_seconds": finite(self.step_seconds),
            "samples": last.samples if last else 0,
            "epochs": self.epochs,
            "loss": finite(self.loss),
            "metric": finite(self.metric),
            "target": self.target,
            "better": self.better,
            "reached_target": self.reached_target,
            "seconds_to_target": self.seconds_to_target,
            "bytes_sent": self.bytes_sent,
            "messages_sent": self.messages_sent,
            "memory": self.memory,
            "holds": self.holds,
            "lost": self.lost,
            "peer_metrics": {str(rank): metric for rank, metric in sorted(self.peer_metrics.items())},
            "staleness": {str(k): v for k, v in sorted(self.staleness.items())},
            "compute_share": summary.compute_share,
            "communicate_share": summary.communicate_share,
            "update_share": summary.update_share,
            "idle_share": summary.idle_share,
        }

    def save(self, directory: str | Path) -> None:
        """Write run.json, history.jsonl, trace.json (for Perfetto), spans.npz and model.safetensors.

        Where there is a moving average or a best model, ema.safetensors and best.safetensors too.

        An older run in the directory is replaced: whole, or, if that fails, not at all. Other files there stay.
        """
        manifest = {
            **self.as_dict(),
            "trainable": self.trainable,
            "fingerprint": self.fingerprint,
            "environment": self.environment,
            "best_metric": finite(self.best_metric),
            "other_metrics": self.other_metrics,
        }
        history = ({**dataclasses.asdict(r), "loss": finite(r.loss)} for r in self.history)
        others = {"ema": self.ema_state, "best": self.best_state}
        files = RunFiles(
            manifest=manifest, history=history, trace=self.trace, state=self.state, other_states=others
        )
        write_folder(directory, lambda folder: write_run(files, folder))

    def report(self, path: str | Path) -> None:
        """Write one HTML page about the run: figures, curves, timeline, who waited for whom. It needs no network."""
        from paceline.report import write_run_page

        write_run_page(path, self)

    @classmethod
    def load(cls, directory: str | Path, task: Task | None = None) -> Run:
        """Read what `save` wrote. With the task, `run.model` is there too.

        Of the directory, only regular files of a sensible size are read, and no links. Whatever is wrong with them is
        a ConfigurationError that names the file.
        """
        files = read_run(Folder(directory))
        history = [_record(values) for values in files.history]
        module = _rebuild(task, files) if task else None
        return cls(
            history=history,
            trace=files.trace,
            state=dict(files.state),
            ema_state=dict(files.other_states["ema"]),
            best_state=dict(files.other_states["best"]),
            module=module,
            **files.manifest,
        )


def _record(values: Mapping[str, Any]) -> Record:
    return Record(**{**values, "loss": math.nan if values["loss"] is None else values["loss"]})


def _rebuild(task: Task, files: RunFiles) -> nn.Module:
    module = task.build_model(files.manifest["seed"])
    try:
        module.load_state_dict(dict(files.state))
    except RuntimeError as error:
        remedy = "give the task that the run was made with"
        raise ConfigurationError("task", "must build the saved model", str(error), remedy) from error
    return module
