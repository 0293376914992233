"""The outcome of each rank, and the run assembled from all outcomes."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.clusters.base.gc_pause import gc_paused
from paceline.clusters.base.job import Job
from paceline.model.memory import empty_peak
from paceline.runs.generation import Generation
from paceline.runs.run import Record, Run
from paceline.system.environment import snapshot
from paceline.task.fingerprint import fingerprint
from paceline.task.metrics import HIGHER
from paceline.trace import Spans, Trace

_log = logging.getLogger("paceline")


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Results that one rank returns from a run."""

    rank: int
    records: list[dict[str, Any]] = field(default_factory=list)
    """On the reporter: one dictionary for each step."""
    reports: bool = False
    """Whether this rank was the reporter at the end of the run."""
    updates: list[dict[str, Any]] = field(default_factory=list)
    """On a worker that updates the parameters independently: one dictionary for each of its updates."""
    counted: int = 0
    """On such a worker: the total number of updates of all ranks, as last received. On the reporter: all updates."""
    metric: float | None = None
    """On the reporter, if workers update independently: the final metric."""
    reported: dict[str, float] = field(default_factory=dict)
    """Values reported after the last record."""
    own_metric: float | None = None
    """On a worker with its own parameters: their final metric, if requested."""
    losses: list[tuple[int, float, int]] = field(default_factory=list)
    """On a worker: step, mean loss and sample count of each batch."""
    logged: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    """On a worker: step of the run, sample count, and values logged by the user's step, for each batch."""
    bytes_at: list[int] = field(default_factory=list)
    """Bytes sent by the end of each step. Only on ranks that run in lockstep with the run."""
    bytes_over_time: list[tuple[float, int]] = field(default_factory=list)
    """Pairs of a time in seconds and the bytes sent until that time. Only on ranks that run independently."""
    samples_per_epoch: int = 0
    """Samples in one pass over the training data. 0 if this rank never read the data."""
    test_samples: int = 0
    """On the reporter: number of test samples, if it evaluated."""
    bytes_sent: int = 0
    messages_sent: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes held at the peak, by kind. Empty if the rank did not return."""
    holds: str = ""
    """Description of the part of the model that the rank held. Empty for the whole model."""
    staleness: dict[int, int] = field(default_factory=dict)
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of a rank that the run continued without, and the step in which it was lost."""
    generations: list[Generation] = field(default_factory=list)
    """On the reporter: generations of members, if the run may continue without lost ranks."""
    overruns: int = 0
    """On an emulated worker: number of gradients that took longer than the time drawn for them."""
    overrun_s: float = 0.0
    """Total excess time of the overruns."""
    threads: int = 0
    """Compute threads. 0 if the rank did not return."""
    seconds: float = 0.0
    clock_residual_s: float = 0.0
    """Upper bound of the clock difference to the other ranks."""
    facts: dict[str, str] = field(default_factory=dict)
    """Other facts about the environment, such as the hosts and their connection."""
    spans: Spans | None = None
    state: dict[str, Tensor] = field(default_factory=dict)
    ema_state: dict[str, Tensor] = field(default_factory=dict)
    """The model state with the moving average of the weights, if the task uses one."""
    result: Any = None
    """Return value of the role program."""


def reporter_of(job: Job, outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of the rank that reported at the end of the run."""
    return next((each for each in outcomes if each.reports), outcomes[job.reporter])


def _take_records(reporter: Outcome, outcomes: Sequence[Outcome]) -> None:
    """Add the records of earlier reporters to those of the last one."""
    records = [record for each in outcomes if each is not reporter for record in each.records]
    by_step = {record["step"]: record for record in (*records, *reporter.records)}
    if len(by_step) > len(reporter.records):
        reporter.records = [by_step[step] for step in sorted(by_step)]


@gc_paused()
def assemble(job: Job, cluster: str, outcomes: Sequence[Outcome], module: nn.Module | None) -> Run:
    """Assemble the outcomes of all ranks into a run."""
    reporter = reporter_of(job, outcomes)
    _take_records(reporter, outcomes)
    if any(outcome.updates for outcome in outcomes):
        reporter.records = _merge_updates(outcomes, reporter)
    if module is not None and reporter.state:
        with torch.no_grad():
            module.load_state_dict(reporter.state)
    return Run(
        strategy=job.name,
        cluster=cluster,
        seed=job.seed,
        history=_history(outcomes, reporter),
        trace=trace_of(outcomes),
        seconds=reporter.records[-1]["seconds"] if reporter.records else max(o.seconds for o in outcomes),
        bytes_sent=[o.bytes_sent for o in outcomes],
        messages_sent=[o.messages_sent for o in outcomes],
        memory=[empty_peak() | o.memory for o in outcomes],
        holds=[o.holds for o in outcomes] if any(o.holds for o in outcomes) else [],
        staleness=_sum_histograms([o.staleness for o in outcomes]),
        lost=_losses(outcomes),
        generations=reporter.generations,
        peer_metrics={o.rank: o.own_metric for o in outcomes if o.own_metric is not None},
        target=job.task.target if job.task else None,
        better=job.task.better_way if job.task else HIGHER,
        other_metrics=list(job.task.metrics())[1:] if job.task else [],
        fingerprint=_fingerprint(job, outcomes, module),
        environment={
            **snapshot(),
            "threads a rank": _threads(outcomes),
            **({"autocast": ", ".join(map(str, job.autocast))} if job.autocast else {}),
            **reporter.facts,
        },
        state=reporter.state,
        ema_state=reporter.ema_state,
        trainable=[name for name, p in module.named_parameters() if p.requires_grad]
        if module is not None
        else [],
        module=module,
    )


def _fingerprint(job: Job, outcomes: Sequence[Outcome], module: nn.Module | None) -> dict[str, str]:
    if job.task is None or module is None:
        return {}
    samples = max(outcome.samples_per_epoch for outcome in outcomes)
    return fingerprint(
        job.task, module, samples=samples, test_samples=reporter_of(job, outcomes).test_samples
    )


def trace_of(outcomes: Sequence[Outcome]) -> Trace:
    """Return the spans of all ranks that returned some."""
    spans = [outcome.spans for outcome in outcomes if outcome.spans is not None]
    seconds = max(outcome.seconds for outcome in outcomes)
    return Trace(spans, seconds, max(outcome.clock_residual_s for outcome in outcomes))


def _history(outcomes: Sequence[Outcome], reporter: Outcome) -> list[Record]:
    records = reporter.records
    if any(outcome.logged for outcome in outcomes):
        for record, logged in zip(records, _logged_by_workers(outcomes, len(records)), strict=True):
            record["extra"] = record["extra"] | logged
    sent = bytes_by(outcomes, [record["seconds"] for record in records])
    if not all("loss" in record and "samples" in record for record in records):
        records = [
            noted | record
            for noted, record in zip(_noted_by_workers(outcomes, len(records)), records, strict=True)
        ]
    one_pass = max(outcome.samples_per_epoch for outcome in outcomes)
    seen = [record["samples"] for record in records]
    epochs = [samples / one_pass for samples in seen] if one_pass else [None] * len(seen)
    columns = {
        name: [record[name] for record in records] for name in ("step", "seconds", "loss", "metric", "extra")
    }
    return Record.of_columns(**columns, samples=seen, bytes=sent, epoch=epochs)


def _noted_by_workers(outcomes: Sequence[Outcome], steps: int) -> Iterator[dict[str, Any]]:
    """Yield the mean loss and the total samples of each step, if the reporter does not have them."""
    losses, samples, seen = [0.0] * steps, [0] * steps, 0
    for outcome in outcomes:
        for step, loss, count in outcome.losses:
            if step < steps:
                losses[step] += loss * count
                samples[step] += count
    for loss, count in zip(losses, samples, strict=True):
        seen += count
        yield {"loss": loss / count if count else float("nan"), "samples": seen}


def _logged_by_workers(outcomes: Sequence[Outcome], records: int) -> list[dict[str, float]]:
    """Return the values logged by the user's step for each record: the mean over the samples of all workers.

    If workers run independently, one step of a worker covers several records. The last of these gets the values.
    """
    entries = [entry for outcome in outcomes for entry in outcome.logged]
    found: list[dict[str, list[tuple[float, int]]]] = [{} for _ in range(records)]
    steps = 1 + max((step for step, _, _ in entries), default=0)
    stride = max(1.0, records / steps)
    for step, samples, values in entries:
        number = round((step + 1) * stride) - 1
        if number < records:
            for name, value in values.items():
                found[number].setdefault(name, []).append((value, samples))
    return [{name: _weighted_mean(values) for name, values in each.items()} for each in found]


def _weighted_mean(values: Sequence[tuple[float, int]]) -> float:
    return sum(value * samples for value, samples in values) / sum(samples for _, samples in values)


def bytes_by(outcomes: Sequence[Outcome], seconds: list[float]) -> list[int]:
    """Return the bytes that all ranks had sent, for each time in `seconds`."""
    sent = np.zeros(len(seconds), dtype=np.int64)
    when: list[float] = []
    totals: list[int] = []
    first_of_rank: list[int] = []
    for outcome in outcomes:
        if outcome.bytes_at:
            steps = np.minimum(np.arange(len(seconds)), len(outcome.bytes_at) - 1)
            sent += np.array(outcome.bytes_at, dtype=np.int64)[steps]
        elif outcome.bytes_over_time:
            first_of_rank.append(len(when))
            times_s, totals_of_rank = zip(*outcome.bytes_over_time, strict=True)
            when += times_s
            totals += totals_of_rank
    when_s, so_far = np.array(when, dtype=np.float64), np.array(totals, dtype=np.int64)
    how_much = np.diff(so_far, prepend=0)
    how_much[first_of_rank] = so_far[first_of_rank]  # the count of each rank starts at 0
    order = np.argsort(when_s, kind="stable")
    running = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(how_much[order])])
    sent += running[np.searchsorted(when_s[order], seconds, side="right")]
    total: list[int] = sent.tolist()
    return total


def _merge_updates(outcomes: Sequence[Outcome], reporter: Outcome) -> list[dict[str, Any]]:
    """Merge the updates of all ranks into one history, numbered in order of time. Sample counts are accumulated."""
    updates = [update for outcome in outcomes for update in outcome.updates]
    # Updates with the same virtual time are sorted by their numbers.
    updates.sort(key=lambda update: (update["seconds"], update["step"]))
    updates = _fill_gaps(updates, outcomes, reporter.counted)
    samples = 0.0
    for number, update in enumerate(updates, start=1):
        samples += update["samples"]
        update.update(step=number, samples=round(samples))
    updates[-1]["metric"] = reporter.metric
    updates[-1]["extra"] = updates[-1]["extra"] | reporter.reported
    return updates


def _fill_gaps(updates: list[dict[str, Any]], outcomes: Sequence[Outcome], last: int) -> list[dict[str, Any]]:
    """Return the updates in order of time, with an entry for each update that a lost rank began but did not report."""
    lost = ", ".join(str(rank) for rank, _ in _losses(outcomes))
    known = {update["step"] for update in updates}
    missing = [number for number in range(1, last + 1) if number not in known] if lost else []
    if not missing:
        return updates
    words = "the losses of %d of %d updates are unknown: rank %s was lost before it reported them"
    _log.warning(words, len(missing), last, lost)
    samples = sum(update["samples"] for update in updates) / len(updates)
    in_time, filled = iter(updates), []
    for number in range(1, last + 1):
        if number in known:
            filled.append(next(in_time))
        else:
            seconds = filled[-1]["seconds"] if filled else updates[0]["seconds"]
            filled.append(
                {"seconds": seconds, "loss": math.nan, "metric": None, "samples": samples, "extra": {}}
            )
    return [*filled, *in_time]


def _losses(outcomes: Sequence[Outcome]) -> list[tuple[int, int]]:
    """Return each lost rank once, ordered by the step in which another rank first detected the loss."""
    missed = [(rank, step) for o in outcomes for rank, step in o.lost if rank != o.rank]
    missed.sort(key=lambda entry: entry[1])
    # The driver's own entry counts only if no rank detected the loss: the lost rank died after its last message.
    noted = [(rank, step) for o in outcomes for rank, step in o.lost if rank == o.rank]
    first: dict[int, int] = {}
    for rank, step in (*missed, *noted):
        first.setdefault(rank, step)
    return sorted(first.items(), key=lambda entry: entry[1])


def _threads(outcomes: Sequence[Outcome]) -> str:
    """Return one number if all ranks used the same count, else the number of each rank that returned."""
    counts = [str(outcome.threads) for outcome in outcomes if outcome.threads]
    return counts[0] if len(set(counts)) == 1 else ", ".join(counts)


def _sum_histograms(histograms: Sequence[dict[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for histogram in histograms:
        for key, count in histogram.items():
            total[key] = total.get(key, 0) + count
    return dict(sorted(total.items()))
