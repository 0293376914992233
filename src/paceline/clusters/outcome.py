"""What each rank of a cluster brings back, and the run that is made of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.clusters.gc_pause import gc_paused
from paceline.clusters.job import Job
from paceline.environment import snapshot
from paceline.fingerprint import fingerprint
from paceline.metrics import HIGHER
from paceline.replica.memory import empty_peak
from paceline.run import Record, Run
from paceline.trace import Spans, Trace

__all__ = ["Outcome", "assemble", "bytes_by", "trace_of"]

_log = logging.getLogger("paceline")


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one rank brings back from a run."""

    rank: int
    records: list[dict[str, Any]] = field(default_factory=list)
    """Of the reporter: a dictionary a step."""
    updates: list[dict[str, Any]] = field(default_factory=list)
    """Of a worker that updates the parameters at its own pace: a dictionary for each of its updates."""
    counted: int = 0
    """Of such a worker: how many updates of all ranks it had heard of in the end; of the reporter, all of the run."""
    metric: float | None = None
    """Of the reporter, where workers update at their own pace: the final metric."""
    reported: dict[str, float] = field(default_factory=dict)
    """What it reported after its last record."""
    own_metric: float | None = None
    """Of a worker with parameters of its own: their metric at the end, if it was asked for."""
    losses: list[tuple[int, float, int]] = field(default_factory=list)
    """Of a worker: step, mean loss and samples of each batch."""
    logged: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    """Of a worker: the step of the run, and the samples and what the user's step told of each batch."""
    bytes_at: list[int] = field(default_factory=list)
    """Bytes sent until the end of each step, of a rank that goes step by step with the run."""
    bytes_over_time: list[tuple[float, int]] = field(default_factory=list)
    """Seconds and bytes sent by then, of a rank that goes at its own pace."""
    samples_per_epoch: int = 0
    """Of one pass over the training data; 0 of a rank that never looked at them."""
    test_samples: int = 0
    """Of the reporter, where it evaluated."""
    bytes_sent: int = 0
    messages_sent: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes that it held, by kind, when it held most; empty of a rank that did not come back."""
    holds: str = ""
    """What it held of the model, in words; empty where that is all of it."""
    staleness: dict[int, int] = field(default_factory=dict)
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Ranks that the run went on without, and the step of each."""
    overruns: int = 0
    """Of an emulated worker: gradients whose computing took longer than the time drawn for them."""
    overrun_s: float = 0.0
    """By how much, all together."""
    threads: int = 0
    """With how many it computed; 0 if it did not come back."""
    seconds: float = 0.0
    clock_residual_s: float = 0.0
    """By how much its clock may differ at most from that of the other ranks."""
    facts: dict[str, str] = field(default_factory=dict)
    """What else the run's environment was: the hosts, how they were joined."""
    spans: Spans | None = None
    state: dict[str, Tensor] = field(default_factory=dict)
    ema_state: dict[str, Tensor] = field(default_factory=dict)
    """The same with the moving average of the weights, where the task asks for one."""
    result: Any = None
    """What the role program returned."""


@gc_paused()
def assemble(job: Job, cluster: str, outcomes: Sequence[Outcome], module: nn.Module | None) -> Run:
    """Put the outcomes of all ranks together."""
    reporter = outcomes[job.reporter]
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
        trainable=[name for name, p in module.named_parameters() if p.requires_grad] if module else [],
        module=module,
    )


def _fingerprint(job: Job, outcomes: Sequence[Outcome], module: nn.Module | None) -> dict[str, str]:
    if job.task is None or module is None:
        return {}
    samples = max(outcome.samples_per_epoch for outcome in outcomes)
    return fingerprint(job.task, module, samples=samples, test_samples=outcomes[job.reporter].test_samples)


def trace_of(outcomes: Sequence[Outcome]) -> Trace:
    """The spans of all ranks that brought some back."""
    spans = [outcome.spans for outcome in outcomes if outcome.spans is not None]
    seconds = max(outcome.seconds for outcome in outcomes)
    return Trace(spans, seconds, max(outcome.clock_residual_s for outcome in outcomes))


def _history(outcomes: Sequence[Outcome], reporter: Outcome) -> list[Record]:
    records = reporter.records
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
    return [
        Record(r["step"], r["seconds"], r["loss"], r["metric"], r["samples"], nbytes, r["extra"], epoch)
        for r, nbytes, epoch in zip(records, sent, epochs, strict=True)
    ]


def _noted_by_workers(outcomes: Sequence[Outcome], steps: int) -> Iterator[dict[str, Any]]:
    """Mean loss, and samples so far, of each step: where the reporter does not know them."""
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
    """What the user's step told of each step: the mean over the samples of all workers.

    Where workers are at steps of their own, one of theirs stands for several of the run's: it is entered at the last.
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
    """Bytes that all ranks had sent by the end of each step, which was at `seconds`."""
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
    how_much[first_of_rank] = so_far[first_of_rank]  # each rank's count begins at 0
    order = np.argsort(when_s, kind="stable")
    running = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(how_much[order])])
    sent += running[np.searchsorted(when_s[order], seconds, side="right")]
    total: list[int] = sent.tolist()
    return total


def _merge_updates(outcomes: Sequence[Outcome], reporter: Outcome) -> list[dict[str, Any]]:
    """The updates of all ranks as one history: numbered in order of time, samples added up."""
    updates = [update for outcome in outcomes for update in outcome.updates]
    # At one moment of virtual time there may be several; their own count then tells which came first.
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
    """The updates, in order of time; between them one for each that a lost rank has begun and not told of."""
    lost = ", ".join(str(rank) for rank, _ in _losses(outcomes))
    known = {update["step"] for update in updates}
    missing = [number for number in range(1, last + 1) if number not in known] if lost else []
    if not missing:
        return updates
    words = "the history does not know the loss of %d of %d updates: rank %s was lost before it could tell"
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
    """Each lost rank once, with the step in which it was first missed; in the order of these steps."""
    missed = [(rank, step) for o in outcomes for rank, step in o.lost if rank != o.rank]
    missed.sort(key=lambda entry: entry[1])
    # The driver's own note counts only where no rank missed it: such a rank died after its last message.
    noted = [(rank, step) for o in outcomes for rank, step in o.lost if rank == o.rank]
    first: dict[int, int] = {}
    for rank, step in (*missed, *noted):
        first.setdefault(rank, step)
    return sorted(first.items(), key=lambda entry: entry[1])


def _threads(outcomes: Sequence[Outcome]) -> str:
    """One number if all ranks had as many, else a number for each rank that came back."""
    counts = [str(outcome.threads) for outcome in outcomes if outcome.threads]
    return counts[0] if len(set(counts)) == 1 else ", ".join(counts)


def _sum_histograms(histograms: Sequence[dict[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for histogram in histograms:
        for key, count in histogram.items():
            total[key] = total.get(key, 0) + count
    return dict(sorted(total.items()))
