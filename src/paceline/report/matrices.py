"""Waiting times and bytes sent between pairs of ranks, as sparse matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.diagnosis.blame import find_blame
from paceline.report.ranks import group_labels, group_size
from paceline.runs.run import Run
from paceline.trace import Kind, Summary, Trace


def waits_matrix(summary: Summary) -> dict[str, Any]:
    """Return the seconds that the rank of a row waited for the rank of a column."""
    known = [each.rank for each in summary.ranks]
    ranks = 1 + max(known + [rank for pair in summary.waits for rank in pair], default=-1)
    return _grouped(ranks, summary.waits)


def causes_matrix(run: Run) -> dict[str, Any]:
    """Return the seconds that the rank of a row waited because of the rank of a column, through others or directly."""
    spans = run.trace.spans
    ranks = 1 + max((each.rank for each in spans), default=-1)
    return _grouped(ranks, find_blame(spans, run.trace.seconds).pairs)


def bytes_matrix(trace: Trace) -> dict[str, Any]:
    """Return the bytes that the rank of a row sent to the rank of a column, from its send spans."""
    ranks = 1 + max((_highest(each.of(Kind.SEND)["peer"], each.rank) for each in trace.spans), default=-1)
    size = group_size(ranks)
    sent: dict[tuple[int, int], float] = {}
    for each in trace.spans:
        spans = each.of(Kind.SEND)
        spans = spans[spans["peer"] >= 0]
        totals = np.bincount(spans["peer"] // size, weights=spans["nbytes"])
        for column in np.flatnonzero(totals).tolist():
            cell = (each.rank // size, column)
            sent[cell] = sent.get(cell, 0.0) + float(totals[column])
    return _matrix(ranks, sent)


def _grouped(ranks: int, pairs: Mapping[tuple[int, int], float]) -> dict[str, Any]:
    size = group_size(ranks)
    seconds: dict[tuple[int, int], float] = {}
    for (waiter, awaited), waited_s in pairs.items():
        cell = (waiter // size, awaited // size)
        seconds[cell] = seconds.get(cell, 0.0) + waited_s
    return _matrix(ranks, seconds)


def _highest(peers: NDArray[np.int32], rank: int) -> int:
    return max(rank, int(peers.max(initial=-1)))


def _matrix(ranks: int, cells: Mapping[tuple[int, int], float]) -> dict[str, Any]:
    return {
        "labels": group_labels(ranks),
        "grouped": group_size(ranks),
        "cells": [[row, column, value] for (row, column), value in sorted(cells.items()) if value > 0],
    }
