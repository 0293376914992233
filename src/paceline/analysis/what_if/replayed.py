"""Runs whose ranks compute segments of a model: their trace is replayed with a change."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.analysis.diagnosis.messages import LinkChange
from paceline.analysis.diagnosis.what_if import relinked_ratio, step_ratio
from paceline.analysis.what_if.recorded import check_slow, link_of
from paceline.costs.link import Link
from paceline.errors import ConfigurationError
from paceline.trace.spans import COMPUTING

if TYPE_CHECKING:
    from paceline.runs.run import Run

_LINKS_REPLAYED = ("pipeline", "layers")
"""Strategies in segments whose messages follow and precede computations, so that a replay can change the links."""


def link_change(run: Run, bandwidth: str | float | None, latency: str | float | None) -> LinkChange | None:
    """Return the change of the links. None if there is none."""
    if bandwidth is None and latency is None:
        return None
    if run.strategy.partition(":")[0] not in _LINKS_REPLAYED:
        bound = "must be a pipeline if its ranks hold parts of the model and the links change"
        remedy = "its messages overlap with computations: predict it with pl.predict and the task"
        raise ConfigurationError("run", bound, run.strategy, remedy)
    link = link_of(run.trace.spans)
    if link is None or not link.seconds_per_byte:
        bound, remedy = "must have messages whose time depends on their bytes", "its ranks share memory"
        raise ConfigurationError("run", bound, run.strategy, remedy)
    given = Link(
        link.bandwidth if bandwidth is None else bandwidth, link.latency if latency is None else latency
    )
    return LinkChange(given.seconds_per_byte / link.seconds_per_byte, given.latency_s - link.latency_s)


def replayed_ratio(run: Run, rank: int | None, change: LinkChange | None) -> tuple[float, str]:
    """Return the factor on the step time, and what is assumed about the work of the ranks.

    `rank` computes as fast as the others. None to leave all computations as they are.
    """
    pace, assumed = ({}, "computations were the same") if rank is None else _pace(run, rank)
    spans = run.trace.spans
    if change is None:
        assert rank is not None, "there is a change"
        ratio = step_ratio(spans, rank, pace[rank])
    else:
        ratio = relinked_ratio(spans, change, pace)
    if ratio is None:
        raise ConfigurationError(
            "run", "must have enough computations for a replay", run.steps, "run it longer"
        )
    return ratio, assumed


def _pace(run: Run, rank: int) -> tuple[dict[int, float], str]:
    """Return the factor on the computations of a slow rank, and what is assumed about its work."""
    seconds = {}
    for each in run.trace.spans:
        computed = each.of(*COMPUTING)
        if len(computed):
            seconds[each.rank] = float((computed["end_s"] - computed["start_s"]).sum())
    usual_s, assumed = _usual_s(run, rank, seconds)
    check_slow(rank, seconds[rank] / usual_s)
    return {rank: usual_s / seconds[rank]}, assumed


def _usual_s(run: Run, rank: int, seconds: Mapping[int, float]) -> tuple[float, str]:
    """Return the seconds that the work of a rank would take on the others, and what is assumed about the work.

    Ranks that hold the same layers have equal work. If there are none, work is in proportion to parameters.
    """
    others = [other for other in seconds if other != rank]
    layers = {each: _layers(run, each) for each in seconds}
    peers = [other for other in others if layers[other] == layers[rank]]
    if peers:
        words = "ranks with the same layers had equal work"
        return statistics.median(seconds[other] for other in peers), words
    nbytes = {
        each: run.memory[each].get("parameters", 0) if each < len(run.memory) else 0 for each in seconds
    }
    if others and all(nbytes.values()):
        rate = statistics.median(seconds[other] / nbytes[other] for other in others)
        return rate * nbytes[rank], "the work of a rank were in proportion to its parameters"
    usual_s = statistics.median(seconds[other] for other in others) if others else seconds[rank]
    return usual_s, "all ranks had equal work"


def _layers(run: Run, rank: int) -> str:
    """Return the layers that a rank held, without its part of them. Empty if it held the whole model."""
    words = run.holds[rank] if rank < len(run.holds) else ""
    return words.partition(", tensor part")[0].partition(", shard")[0]
