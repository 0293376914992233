"""The bench in virtual time: the predicted time of each algorithm on links of a given latency and bandwidth.

Each schedule is timed as a whole. This gives the same time as simulating it message by message, but a prediction for a
thousand workers takes only seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.bench.measure import machine_facts
from paceline.bench.report import Report, make_row
from paceline.bench.spec import Spec
from paceline.clusters.simulated.simulated import Simulated
from paceline.collectives import choose_algorithm
from paceline.context import Context
from paceline.costs.link import Link
from paceline.programs import run_program
from paceline.schedules.collectives.timing import time_schedule


def predict(spec: Spec, cluster: Simulated, on_size: Callable[[int], None] | None = None) -> Report:
    """Predict the time of every algorithm of the bench on the cluster's link."""
    rows = []
    for place, length in enumerate(spec.lengths):
        if on_size is not None:
            on_size(place)
        for name in spec.algorithms:
            meant = _chosen(cluster, length, spec) if name == "auto" else name
            seconds = _seconds(spec, meant, length, cluster.between)
            rows.append(make_row(spec, length, name, [seconds]))
    where = f"{spec.workers} simulated workers, link {cluster.link}"
    return Report(spec=spec, where=where, rows=tuple(rows), link=cluster.between, machine=machine_facts())


def _seconds(spec: Spec, algorithm: str, length: int, link: Link) -> float:
    timing = time_schedule(
        spec.kind.collective(algorithm, spec.workers).plan(),
        length=length,
        itemsize=spec.itemsize,
        arrivals_s=0.0,
        latency_s=link.latency_s,
        seconds_per_byte=link.seconds_per_byte,
    )
    return float(timing.finish_s.max())


def _chosen(cluster: Simulated, length: int, spec: Spec) -> str:
    """Return the algorithm that `auto` selects at this size, by running the choice in the simulation."""
    import torch

    nbytes = length * getattr(torch, spec.dtype).itemsize

    async def ask(ctx: Context) -> str:
        return choose_algorithm(ctx.net, nbytes)

    chosen: str = run_program(ask, cluster).results[0]
    return chosen
