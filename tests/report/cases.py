"""Runs for the tests of the report: small, simulated, the same every time; and some made by hand."""

import numpy as np
from tasks import a_task, numbers, simulated

import paceline as pl
from paceline.analysis.comparison.entry import Entry
from paceline.runs.run import Record, Run
from paceline.trace import SPAN, Spans, Trace


def accuracy(outputs, targets):
    return float(1 / (1 + (outputs - targets).abs().mean()))


def measured_task():
    test = (numbers(6, 4, seed=5), numbers(6, 2, seed=6))
    return a_task(test=test, metric=accuracy, target=0.45)


def trained(strategy, workers=4, *, steps=24, seed=0, **cluster):
    """A run on links that take time, so that all kinds of span have a length."""
    given = {"link": pl.Link("1Mbps", "1ms"), "slow": {workers - 1: 4.0}} | cluster
    return pl.train(measured_task(), strategy, simulated(workers, **given), steps=steps, seed=seed)


def entry(strategy, *runs, name=None):
    return Entry(name=name or strategy, runs=runs or (trained(strategy),))


def handmade(rows=(), *, ranks=2, seconds=10.0, roles=(), **more):
    """A run of these spans: tuples of rank, kind, start, end and perhaps peer, bytes, step."""
    named = dict(enumerate(roles))
    spans = [
        Spans(spans_array([row[1:] for row in rows if row[0] == rank]), rank, named.get(rank, "worker"))
        for rank in range(ranks)
    ]
    return run_of(spans, seconds, **more)


def run_of(spans, seconds, **more):
    given = {
        "strategy": "all-reduce",
        "cluster": "a cluster",
        "seed": 0,
        "history": [],
        "trace": Trace(spans, seconds),
        "seconds": seconds,
        "bytes_sent": [0] * len(spans),
        "messages_sent": [0] * len(spans),
        "staleness": {},
    }
    return Run(**(given | more))


def spans_array(rows):
    array = np.zeros(len(rows), dtype=SPAN)
    for place, row in enumerate(rows):
        kind, start_s, end_s, peer, nbytes, step = (*row, *(-1, 0, 0)[len(row) - 3 :])
        array[place] = (kind, start_s, end_s, peer, nbytes, step, -1)
    return array


def history_of(losses, *, metric=None, **extra):
    """A step a second, 8 samples and 100 bytes each."""
    return [
        Record(place + 1, float(place + 1), loss, metric, 8 * (place + 1), 100 * (place + 1), dict(extra))
        for place, loss in enumerate(losses)
    ]


def many_spans(total, ranks=4, seed=0):
    """A run of random spans, which are hard to compress."""
    rng = np.random.default_rng(seed)
    count = total // ranks
    spans = []
    for rank in range(ranks):
        edges = rng.exponential(1e-3, 2 * count).cumsum()
        array = np.zeros(count, dtype=SPAN)
        array["start_s"], array["end_s"] = edges[::2], edges[1::2]
        array["kind"] = rng.integers(0, 5, count)
        array["peer"] = np.where(array["kind"] % 4 == 0, -1, rng.integers(0, ranks, count))
        array["nbytes"] = np.where(array["peer"] >= 0, 1000 * rng.integers(0, 50, count), 0)
        array["step"] = np.arange(count) // 6
        array["message"] = -1
        spans.append(Spans(array, rank))
    seconds = float(max(each.array["end_s"][-1] for each in spans))
    steps = count // 6
    history = [
        Record(step + 1, seconds * (step + 1) / steps, float(rng.exponential()), None, 64 * (step + 1), 0)
        for step in range(steps)
    ]
    return run_of(spans, seconds, history=history)
