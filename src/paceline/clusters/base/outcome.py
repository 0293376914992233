"""The outcome of each rank, and the run assembled from all outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from paceline.clusters.base.gc_pause import gc_paused
from paceline.clusters.base.history import history_of, losses_of, merge_updates
from paceline.clusters.base.job import Job
from paceline.model.memory import empty_peak
from paceline.runs.generation import Generation
from paceline.runs.run import Run
from paceline.system.environment import snapshot
from paceline.task.fingerprint import fingerprint
from paceline.task.metrics import HIGHER
from paceline.trace import Spans, Trace


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
    skipped: int = 0
    """Updates that the rank skipped, because a gradient was not finite in float16."""
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
        reporter.records = merge_updates(outcomes, reporter)
    if module is not None and reporter.state:
        with torch.no_grad():
            module.load_state_dict(reporter.state)
    return Run(
        strategy=job.name,
        cluster=cluster,
        seed=job.seed,
        history=history_of(outcomes, reporter),
        trace=trace_of(outcomes),
        seconds=reporter.records[-1]["seconds"] if reporter.records else max(o.seconds for o in outcomes),
        bytes_sent=[o.bytes_sent for o in outcomes],
        messages_sent=[o.messages_sent for o in outcomes],
        memory=[empty_peak() | o.memory for o in outcomes],
        holds=[o.holds for o in outcomes] if any(o.holds for o in outcomes) else [],
        staleness=_sum_histograms([o.staleness for o in outcomes]),
        skipped=[o.skipped for o in outcomes] if any(o.skipped for o in outcomes) else [],
        lost=losses_of(outcomes),
        generations=reporter.generations,
        peer_metrics={o.rank: o.own_metric for o in outcomes if o.own_metric is not None},
        target=job.task.target if job.task else None,
        better=job.task.better_way if job.task else HIGHER,
        other_metrics=list(job.task.metrics())[1:] if job.task else [],
        fingerprint=_fingerprint(job, outcomes, module),
        environment={
            **snapshot(),
            "threads a rank": _threads(outcomes),
            **({"min_workers": _elastic_words(job)} if job.regroups else {}),
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


def _elastic_words(job: Job) -> str:
    """Return `min_workers`, and what it changes: ranks share no memory, because a lost one leaves it half written."""
    return f"{job.min_workers}; ranks exchange by messages, not in shared memory"


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
