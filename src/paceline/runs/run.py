"""The result of a run: history, trace and model; and saving it to disk."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError
from paceline.files.reading import Folder
from paceline.files.writing import finite, write_folder
from paceline.runs.files import FORMAT, RunFiles, read_run, write_run
from paceline.runs.generation import Generation
from paceline.runs.record import Record
from paceline.runs.summary import as_html, as_text, in_short
from paceline.task.metrics import HIGHER, reaches
from paceline.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.task.task import Task

__all__ = ["FORMAT", "Progress", "Record", "Run"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run. A progress callback receives it at most ten times a second."""

    step: int
    steps: int
    loss: float
    samples: int
    seconds: float
    metric: float | None = None
    slow_rank: int | None = None
    """The slowest rank in computing, if one is much slower than the others; else None."""
    slowness: float = 1.0
    """Its compute time relative to the other ranks. Infinite if it has not completed a computation yet."""
    workers: int | None = None
    """Present number of workers, without lost ones. None if unknown."""


@dataclass(slots=True, kw_only=True, repr=False)
class Run:
    """The result of a run. Its text has five lines. A notebook shows a table and curves."""

    strategy: str
    cluster: str
    seed: int
    history: list[Record]
    trace: Trace
    seconds: float
    """Duration on the run's own clock (virtual in a simulation), without evaluations."""
    bytes_sent: list[int]
    messages_sent: list[int]
    staleness: dict[int, int]
    """Number of applied gradients by staleness."""
    memory: list[dict[str, int]] = field(default_factory=list)
    """Peak memory of each rank: bytes of parameters, gradients, optimizer, activations and buffers, and their total.
    See docs/memory.md. Empty in runs that older versions saved."""
    holds: list[str] = field(default_factory=list)
    """Description of the part of the model on each rank, such as "stage 1 of 2: layers 4 … 7". Empty if every rank has
    the whole model."""
    skipped: list[int] = field(default_factory=list)
    """Number of updates that each rank skipped, because a gradient was not finite in float16. Empty if none was."""
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Ranks that died while the run continued, each with its step."""
    generations: list[Generation] = field(default_factory=list)
    """Generations of members, if the cluster has `min_workers`. Each begins when a rank is lost or joins."""
    peer_metrics: dict[int, float] = field(default_factory=dict)
    """Final metric of each worker that has its own parameters, if the strategy evaluates them."""
    target: float | None = None
    better: str = HIGHER
    """Whether "higher" or "lower" values of the metric are better."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """Identity of the task: model, samples, batch size, loss, metric and target. Only runs of one task are compared."""
    environment: dict[str, str] = field(default_factory=dict)
    """Versions, machine and command of the run; see `environment.snapshot`."""
    state: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """State dict of the final model."""
    ema_state: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """State dict with the moving average of the weights, if the task has one (`Task(ema=…)`)."""
    best_state: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """State dict of the model with the best metric, if `pl.callbacks.KeepBest` was used."""
    best_metric: float | None = None
    other_metrics: list[str] = field(default_factory=list, repr=False)
    """Names of the task's metrics after the first. The history has their values under these names."""
    trainable: list[str] = field(default_factory=list, repr=False)
    """Names of the trainable parameters, in the order of registration."""
    module: nn.Module | None = field(default=None, repr=False)

    @property
    def model(self) -> nn.Module:
        """The trained model. After `Run.load` it is available only if the task was given."""
        if self.module is None:
            raise ConfigurationError(
                "task",
                "is needed to rebuild the model of a loaded run",
                None,
                "call Run.load(dir, task=…), or use run.state",
            )
        return self.module

    @property
    def joined(self) -> list[tuple[int, int]]:
        """Ranks that have joined the run, each with its first step."""
        return [(rank, each.first_step) for each in self.generations for rank in each.joined]

    @property
    def parameters(self) -> Tensor:
        """All trainable parameters of the final model, as one flat CPU tensor."""
        import torch

        if not self.state:
            remedy = 'the run had no tensor math: use math="real"'
            raise ConfigurationError("math", "must be real for a run to have parameters", "none", remedy)
        return torch.cat([self.state[name].reshape(-1) for name in self.trainable])

    @property
    def steps(self) -> int:
        return self.history[-1].step if self.history else 0

    @property
    def epochs(self) -> float | None:
        """Passes over the data: samples used / samples in the data. None if unknown."""
        return self.history[-1].epoch if self.history else None

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step."""
        return self.seconds / self.steps if self.steps else math.nan

    @property
    def metric(self) -> float | None:
        """The metric at the last evaluation; None if there was none."""
        return next((r.metric for r in reversed(self.history) if r.metric is not None), None)

    def last(self, name: str) -> float | None:
        """Return the last value under a name in `extra`: another metric, or a value reported by a step or strategy."""
        return next((r.extra[name] for r in reversed(self.history) if name in r.extra), None)

    @property
    def loss(self) -> float:
        """Loss of the last step that had samples. NaN if there is none, or without tensor math."""
        losses = (record.loss for record in reversed(self.history))
        return next((loss for loss in losses if not math.isnan(loss)), math.nan)

    @property
    def seconds_to_target(self) -> float | None:
        """Time at which an evaluation first reached the target; None if none did."""
        record = self.record_at_target
        return None if record is None else record.seconds

    @property
    def record_at_target(self) -> Record | None:
        """The first step with an evaluation that reached the target; None if there is none."""
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
        """Return the figures of the run as a dictionary for JSON."""
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
            "skipped": self.skipped,
            "lost": self.lost,
            "generations": [dataclasses.asdict(each) for each in self.generations],
            "peer_metrics": {str(rank): metric for rank, metric in sorted(self.peer_metrics.items())},
            "staleness": {str(k): v for k, v in sorted(self.staleness.items())},
            "compute_share": summary.compute_share,
            "communicate_share": summary.communicate_share,
            "update_share": summary.update_share,
            "idle_share": summary.idle_share,
        }

    def save(self, directory: str | Path) -> None:
        """Write run.json, history.jsonl, trace.json (for Perfetto), spans.npz and model.safetensors.

        If there is a moving average or a best model, write ema.safetensors and best.safetensors too.

        An older run in the directory is replaced atomically: on failure it is unchanged. Other files are not touched.
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
        """Write an HTML page about the run: figures, curves, timeline and waiting times. It needs no network."""
        from paceline.report import write_run_page

        write_run_page(path, self)

    @classmethod
    def load(cls, directory: str | Path, task: Task | None = None) -> Run:
        """Load a run written by `save`. With the task, `run.model` is available too.

        Only regular files of a plausible size are read, no symbolic links. Any defect raises a ConfigurationError that
        names the file.
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
        remedy = "give the task of the saved run"
        raise ConfigurationError("task", "must build the saved model", str(error), remedy) from error
    return module
