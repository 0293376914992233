"""The figures of the tutorial. Each is drawn from runs of this tree, whose results are stored in data/.

python docs/tutorial/figures.py             # repeat all runs, store their results, and draw
python docs/tutorial/figures.py gossip      # one figure
python docs/tutorial/figures.py --draw      # draw the stored results again
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import networkx
import numpy
import torch
from chart import draw
from lessons import curve, line, wide

import paceline as pl
from paceline.costs.intervals import daly_s
from paceline.schedules.collectives import group_plan
from paceline.schedules.collectives.timing import time_schedule
from paceline.schedules.pipeline import pipeline_order
from paceline.schedules.topologies import build_topology
from paceline.testing.order_statistics import seconds_per_update
from paceline.testing.pipeline_timing import time_order

FOLDER = Path(__file__).parent
FIGURES: dict[str, Callable[[], dict[str, Any]]] = {}

LINK = pl.Link("1Gbps", "50us")
STEADY = pl.times.Constant("10ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*FIGURES, []])
    parser.add_argument("--draw", action="store_true", help="do not repeat the runs")
    options = parser.parse_args()
    for name in options.names or FIGURES:
        if not options.draw:
            store(name, FIGURES[name]())
        (FOLDER / "figures" / f"{name}.svg").write_text(draw(stored(name)), encoding="utf-8")
        print(name)


def store(name: str, data: Mapping[str, Any]) -> None:
    text = json.dumps(data, indent=1, ensure_ascii=False)
    (FOLDER / "data" / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def stored(name: str) -> dict[str, Any]:
    """Return the stored results of a figure."""
    found: dict[str, Any] = json.loads((FOLDER / "data" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def figure(title: str, x: str, y: str, log: str = "") -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function that returns the lines of a figure: points by name."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> dict[str, Any]:
            lines = {name: [_rounded(point) for point in points] for name, points in make().items()}
            return {"title": title, "x": x, "y": y, "log": log, "lines": lines}

        FIGURES[make.__name__.replace("_", "-")] = made
        return made

    return register


def _rounded(point: tuple[float, float]) -> list[float]:
    return [float(f"{value:.5g}") for value in point]


@figure("One worker: the size of a batch", "samples", "loss", "y")
def batch_size() -> Any:
    def losses(size: int) -> Any:
        run = pl.train(line(batch_size=size), "single", pl.Simulated(workers=1, compute=STEADY), epochs=2)
        return [(record.samples, record.loss) for record in run.history]

    return {f"batches of {size}": losses(size) for size in (16, 64, 256)}


@figure("Data parallelism: 4 MB of gradients, 10 Gbit/s", "workers", "ms per step", "xy")
def data_parallel() -> Any:
    def step_ms(strategy: str, workers: int) -> float:
        compute, link = pl.times.Constant(0.256 / workers), pl.Link("10Gbps", "50us")
        cluster = pl.Simulated(workers=workers, compute=compute, link=link, math="none")
        return 1e3 * pl.train(wide(), strategy, cluster, steps=2).step_seconds

    counts = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    names = {"map-reduce": "map-reduce", "all-reduce, ring": "all-reduce:algorithm=ring"}
    names["all-reduce, tree"] = "all-reduce:algorithm=tree"
    lines = {name: [(n, step_ms(spec, n)) for n in counts] for name, spec in names.items()}
    return lines | {"computation alone": [(n, 256 / n) for n in counts]}


@figure("All-reduce among 64 workers, 10 Gbit/s, 50 µs", "bytes", "ms", "xy")
def ring_and_tree() -> Any:
    def milliseconds(algorithm: str, size: int) -> float:
        timing = time_schedule(
            group_plan("all-reduce", algorithm, 64),
            length=size // 4,
            itemsize=4,
            arrivals_s=0.0,
            latency_s=50e-6,
            seconds_per_byte=8 / 10e9,
        )
        return 1e3 * float(timing.finish_s.max())

    sizes = [2**power for power in range(10, 29, 2)]
    names = ("ring", "tree", "recursive-doubling", "halving-doubling")
    return {name: [(size, milliseconds(name, size)) for size in sizes] for name in names}


@figure("16 workers, 20 ms plus a random 10 ms", "k: gradients of an update", "ms per update")
def k_sync() -> Any:
    times = pl.times.ShiftedExponential("20ms", "10ms")

    def simulated_ms(k: int) -> float:
        cluster = pl.Simulated(workers=16, compute=times, link=pl.Link.ideal(), math="none")
        return 1e3 * pl.train(line(), f"k-sync:k={k}", cluster, steps=200).step_seconds

    theory = [(k, 1e3 * (seconds_per_update("k-sync", times, 16, k) or 0)) for k in range(1, 17)]
    return {"simulated": [(k, simulated_ms(k)) for k in (1, 4, 8, 12, 14, 16)], "theory": theory}


@figure("8 workers, one of them 4x as slow", "seconds", "loss", "y")
def staleness() -> Any:
    times = pl.times.ShiftedExponential("8ms", "2ms")
    cluster = pl.Simulated(workers=8, compute=times, link=LINK, slow={7: 4.0})

    def losses(strategy: str, rate: float, steps: int) -> Any:
        run = pl.train(line(rate), strategy, cluster, steps=steps)
        return [(record.seconds, record.loss) for record in run.history][:: max(1, steps // 50)]

    return {
        "all-reduce, rate 0.02": losses("all-reduce", 0.02, 25),
        "k-sync:k=7, rate 0.02": losses("k-sync:k=7", 0.02, 80),
        "async, rate 0.02": losses("async", 0.02, 700),
        "async, rate 0.2": losses("async", 0.2, 120),
    }


@figure("16 peers average their values", "steps", "distance from the mean", "y")
def gossip() -> Any:
    pair = networkx.disjoint_union(networkx.cycle_graph(8), networkx.cycle_graph(8))
    values = numpy.random.default_rng(0).standard_normal((16, 100))
    start = values - values.mean(0)

    def distances(topology: Any) -> Any:
        graph, now, found = build_topology(topology, 16, allow_disconnected=True), start, []
        for step in range(41):
            found.append((step, float(numpy.linalg.norm(now) / numpy.linalg.norm(start))))
            now = graph.mix(now, step)
        return [point for point in found if point[1] > 1e-6]

    graphs = {"two rings of 8": pair, "ring": "ring", "torus": "torus", "exponential": "exponential"}
    return {name: distances(graph) for name, graph in graphs.items()}


@figure("8 workers, 10 Mbit/s, 5 ms", "MB sent by a worker", "test error", "x")
def fewer_bytes() -> Any:
    cluster = pl.Simulated(workers=8, compute=STEADY, link=pl.Link("10Mbps", "5ms"))

    def errors(strategy: str) -> Any:
        run = pl.train(curve(), strategy, cluster, epochs=20)
        sent = max(run.bytes_sent) / 1e6 / run.steps
        return [(sent * each.step, each.metric) for each in run.history if each.metric and each.step > 10]

    names = ("all-reduce", "all-reduce:codec=topk-0.05", "local-sgd:period=4", "diloco:period=16")
    return {name: errors(name) for name in names}


@figure("8 stages; forward, inputs and weights take equal times", "micro-batches", "bubble", "x")
def bubble() -> Any:
    def share(order: str, microbatches: int) -> float:
        chunks = 2 if order == "interleaved" else 1
        actions = pipeline_order(order, 8, microbatches, chunks)
        seconds = {"F": 1.0, "B": 1.0, "W": 1.0}
        timing = time_order(actions, lambda each, _: sum(seconds[p] for p in each.phase.value), chunks=chunks)
        return timing.bubble

    counts = (8, 16, 24, 32, 48, 64)
    orders = ("1f1b", "interleaved", "zb-h1", "zb-h2")
    return {order: [(count, share(order, count)) for count in counts] for order in orders}


@figure("A failure every 6 h, a checkpoint takes 30 s", "minutes between checkpoints", "time lost", "x")
def checkpoints() -> Any:
    def lost(every_s: float) -> float:
        """Return the mean share of time for writing checkpoints, and for work that is repeated after failures."""
        return 30 / (every_s + 30) + (every_s / 2) / (6 * 3600)

    minutes = (1, 2, 5, 10, 15, 20, 30, 60, 120)
    best_s = daly_s(30, 6 * 3600)
    points = sorted([*((each, lost(60 * each)) for each in minutes), (best_s / 60, lost(best_s))])
    return {"lost": points, "Daly's interval": [(best_s / 60, lost(best_s)), (best_s / 60, 0)]}


@figure("A GPT of 405 M parameters on 16 A100", "Gbit/s between hosts", "ms per step", "xy")
def bandwidth() -> Any:
    task = pl.models.GPT(24, 1024, 16, 1024, 50304, 64, dtype=torch.bfloat16)

    def step_ms(strategy: str, gigabits: float) -> float:
        inside, link = pl.Link("2400Gbps", "2us"), pl.Link(f"{gigabits}Gbps", "10us")
        device = pl.devices.A100
        cluster = pl.Simulated(workers=16, hosts=4, math="none", device=device, link=link, inside=inside)
        return 1e3 * pl.predict(task, strategy, cluster).step_seconds

    names = ("all-reduce", "local-sgd:period=16", "zero:stage=3", "hybrid:pipeline=4,microbatches=16")
    speeds = (1, 2, 5, 10, 25, 50, 100, 200, 400)
    return {name: [(speed, step_ms(name, speed)) for speed in speeds] for name in names}


if __name__ == "__main__":
    main()
