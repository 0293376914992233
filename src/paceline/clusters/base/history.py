"""The history of a run, assembled from the records of all ranks."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.runs.run import Record

if TYPE_CHECKING:
    from paceline.clusters.base.outcome import Outcome

_log = logging.getLogger("paceline")


def history_of(outcomes: Sequence[Outcome], reporter: Outcome) -> list[Record]:
    """Return the history of a run."""
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


def merge_updates(outcomes: Sequence[Outcome], reporter: Outcome) -> list[dict[str, Any]]:
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
    lost = ", ".join(str(rank) for rank, _ in losses_of(outcomes))
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


def losses_of(outcomes: Sequence[Outcome]) -> list[tuple[int, int]]:
    """Return each lost rank once, ordered by the step in which another rank first detected the loss."""
    missed = [(rank, step) for o in outcomes for rank, step in o.lost if rank != o.rank]
    missed.sort(key=lambda entry: entry[1])
    # The driver's own entry counts only if no rank detected the loss: the lost rank died after its last message.
    noted = [(rank, step) for o in outcomes for rank, step in o.lost if rank == o.rank]
    first: dict[int, int] = {}
    for rank, step in (*missed, *noted):
        first.setdefault(rank, step)
    return sorted(first.items(), key=lambda entry: entry[1])
