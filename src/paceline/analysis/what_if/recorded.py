"""Costs that a saved run shows: seconds of gradients and updates, links, and the sizes of the model and its batches."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from paceline.analysis.diagnosis.activities import read_activities
from paceline.analysis.diagnosis.messages import match_messages
from paceline.analysis.diagnosis.what_if import beginning_s
from paceline.costs.fit import fit_link
from paceline.costs.link import Link
from paceline.errors import ConfigurationError
from paceline.task.task import Task
from paceline.trace.spans import PASSES, Kind, Spans

if TYPE_CHECKING:
    from paceline.runs.run import Run

_COUNT = re.compile(r"([\d,]+) parameters")
_EPOCHS = 16
"""Batches of an epoch of the stand-in task, if the number of samples is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Costs of the ranks of a run."""

    gradients_s: Mapping[int, Sequence[float]]
    """Seconds of each gradient, by rank. Ranks that compute none, such as servers, are left out."""
    update_s: float
    """Seconds of an update of `update_bytes` bytes."""
    update_bytes: int
    link: Link | None
    """Link of messages. None if there were none."""
    window: Link | None
    """Reads and barriers of memory that ranks share. None if ranks shared no memory."""
    is_emulated: bool
    """Whether the seconds of a gradient were given, so that they do not depend on its samples."""

    @property
    def workers(self) -> int:
        return len(self.gradients_s)

    def median_s(self, rank: int) -> float:
        return statistics.median(self.gradients_s[rank])

    def slowness(self, rank: int) -> float:
        """Return the seconds of a rank's gradients, divided by the median of the other ranks."""
        others = [self.median_s(other) for other in self.gradients_s if other != rank]
        usual_s = statistics.median(others) if others else 0.0
        return self.median_s(rank) / usual_s if usual_s else 1.0


def recorded(run: Run) -> Recorded:
    """Return the costs that a run shows. Raise an error that names what is missing."""
    spans = [each for each in run.trace.spans if each.role != "server"]
    gradients = {each.rank: _seconds(each, Kind.COMPUTE) for each in spans}
    passes = sum(len(each.of(*PASSES)) for each in spans)
    if passes:
        found = f"{passes} passes over segments ({run.strategy})"
        bound = "must have ranks that compute whole gradients"
        raise ConfigurationError(
            "run",
            bound,
            found,
            "only --without-slow, and for pipelines --bandwidth and --latency, are supported",
        )
    missing = [rank for rank, seconds in gradients.items() if not seconds]
    if missing or not gradients:
        found = f"none on rank {', '.join(map(str, missing))}" if missing else "a trace without workers"
        raise ConfigurationError(
            "run", "must have a completed gradient on every worker", found, "run it longer"
        )
    update_s, update_bytes = _update(run)
    return Recorded(
        gradients_s=gradients,
        update_s=update_s,
        update_bytes=update_bytes,
        link=link_of(run.trace.spans),
        window=_window(run.trace.spans),
        is_emulated="compute" in run.environment.get("emulated", "") or ", compute " in run.cluster,
    )


def _seconds(spans: Spans, kind: Kind) -> list[float]:
    found = spans.of(kind)
    taken: list[float] = (found["end_s"] - found["start_s"]).tolist()
    return taken


def _update(run: Run) -> tuple[float, int]:
    """Return the seconds of an update. A rank that updates a shard of the parameters is faster than one that updates
    all: the sum over the ranks of a step counts if they share the work.
    """
    seconds = [s for each in run.trace.spans for s in _seconds(each, Kind.UPDATE)]
    return (statistics.median(seconds), parameter_bytes(run)) if seconds else (0.0, 0)


def check_slow(rank: int, factor: float) -> None:
    """Raise an error if a rank is not slower than the others."""
    if factor <= 1:
        bound = f"must be slower than the others, but computes {factor:.2f} times as long as their median"
        raise ConfigurationError("without_slow", bound, rank, "choose the slow rank")


def link_of(spans: Sequence[Spans]) -> Link | None:
    """Return the link of messages, fitted to a trace. None if it has no messages."""
    activities = read_activities(spans, beginning_s(spans))
    messages = match_messages(activities)
    waited = activities.waited[messages.receipt]
    if not len(messages.send):
        return None
    which = waited if waited.any() else np.ones_like(waited)
    sizes, travel_s = activities.nbytes[messages.send][which], messages.travel_s[which]
    known = {int(size): float(travel_s[sizes == size].min()) for size in np.unique(sizes)}
    positive = {size: seconds for size, seconds in known.items() if seconds > 0}
    if not positive:
        return Link.ideal()
    if len(positive) == 1:
        ((size, seconds),) = positive.items()
        carry_s = float(messages.carry_s[which].min())
        return Link(size / carry_s if carry_s else np.inf, max(0.0, seconds - carry_s))
    return fit_link(list(positive), list(positive.values()))


def _window(spans: Sequence[Spans]) -> Link | None:
    reads = np.concatenate([each.of(Kind.RECEIVE) for each in spans])
    reads = reads[(reads["peer"] < 0) & (reads["nbytes"] > 0) & (reads["message"] < 0)]
    if not len(reads):
        return None
    per_byte_s = float(np.median((reads["end_s"] - reads["start_s"]) / reads["nbytes"]))
    return Link(1 / per_byte_s if per_byte_s else np.inf)


# The task


class StandIn(nn.Module):
    """A model without data: parameters and buffers of given shapes."""

    def __init__(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        super().__init__()
        self.all = nn.ParameterList(parameters)
        for number, each in enumerate(buffers):
            self.register_buffer(f"buffer_{number}", each)

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = inputs * self.all[0].sum()
        return made


def stand_in_task(run: Run) -> Task:
    """Return a task whose model and batches have the sizes of those of the run. It cannot compute."""
    batch_size = int(run.fingerprint.get("batch size", "0") or 0)
    if batch_size < 1:
        remedy = "save the run with this version"
        raise ConfigurationError("run", "must name its batch size", dict(run.fingerprint), remedy)
    samples = int(run.fingerprint.get("samples", "0").replace(",", "")) or _EPOCHS * batch_size
    parameters, buffers = _tensors(run)
    return Task(
        model=StandIn(parameters, buffers),
        data=(torch.zeros(samples, 1), torch.zeros(samples, 1)),
        loss=nn.functional.mse_loss,
        optimizer=lambda given: torch.optim.SGD(given, lr=0.0),
        batch_size=batch_size,
    )


def _tensors(run: Run) -> tuple[list[Tensor], list[Tensor]]:
    if run.state:
        trained = [torch.empty_like(run.state[name], device="meta") for name in run.trainable]
        others = [each for name, each in run.state.items() if name not in set(run.trainable)]
        return trained, [torch.empty_like(each, device="meta") for each in others if each.is_floating_point()]
    found = _COUNT.search(run.fingerprint.get("model", ""))
    if found is None:
        raise ConfigurationError(
            "run", "must name the size of its model", dict(run.fingerprint), "save it again"
        )
    return [torch.empty(int(found[1].replace(",", "")), device="meta")], []


def parameter_bytes(run: Run) -> int:
    return sum(each.nbytes for each in _tensors(run)[0])
