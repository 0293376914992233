"""Is averaging with neighbours only as good as averaging with all peers, over a slow link and over a fast link?

Eight peers train a model of one megabyte on handwritten digits: with all-reduce, with D-PSGD on several graphs, with
AD-PSGD and with local SGD. All use the same model, data, batches of 64, seed, optimizer and learning rate, which suits
all-reduce. The output shows which strategy is first at 97 % test accuracy, and the loss over seconds and over bytes.
The time at which accuracy first exceeds 97 % (350 of 360 images) is partly random: benchmarks/decentralized.py uses
several seeds.

    python examples/topologies.py                        # simulated: a slow and a fast link, about a minute on 2 cores
    python examples/topologies.py --real                 # also in processes, over an emulated slow link: minutes more
    python examples/topologies.py --report page.html     # also as curves
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import nn

import paceline as pl
from paceline.cli.table import print_table

PEERS = 8
STRATEGIES = (
    "all-reduce:algorithm=ring",
    "decentralized:topology=ring",
    "decentralized:topology=torus",
    "decentralized:topology=exponential",
    "decentralized:topology=one-peer-exponential",
    "decentralized:topology=complete",
    "decentralized:mode=async",
    "local-sgd:period=8",
)
SLOW = pl.Link(bandwidth="100Mbps", latency="5ms")
FAST = pl.Link(bandwidth="10Gbps", latency="50us")
COMPUTE = pl.times.Constant("2ms")
EPOCHS = 8
EVALUATE_EVERY = 8
"""Batches between two evaluations, at which peers wait for each other. Equal to the period of local SGD."""
WINDOW = 8
"""Batches over which a loss is averaged."""

Runs = dict[str, pl.Run]


def model() -> nn.Sequential:
    """Return a model with 250,570 parameters (1.0 megabyte)."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 464), nn.ReLU(), nn.Linear(464, 464), nn.ReLU(), nn.Linear(464, 10)
    )


digits = pl.load_task(Path(__file__).with_name("digits.py"))
task = dataclasses.replace(digits, model=model)


def simulated(link: pl.Link) -> pl.Simulated:
    return pl.Simulated(workers=PEERS, compute=COMPUTE, link=link)


def updates_a_batch(strategy: str) -> int:
    """Return the steps per batch. A step of AD-PSGD is the update of one peer, with an eighth of a batch."""
    return PEERS if "mode=async" in strategy else 1


def train(
    strategy: str,
    cluster: pl.Local | pl.Simulated,
    *,
    epochs: float = EPOCHS,
    seed: int = 0,
    stop: bool = False,
) -> pl.Run:
    times = updates_a_batch(strategy)
    return pl.train(
        task,
        strategy,
        cluster,
        epochs=epochs,
        evaluate_every=EVALUATE_EVERY * times,
        seed=seed,
        stop_at_target=stop,
    )


def train_all(cluster: pl.Local | pl.Simulated, *, stop: bool = False) -> Runs:
    runs = {}
    for strategy in STRATEGIES:
        print(f"{cluster}: {strategy}", file=sys.stderr)
        runs[strategy] = train(strategy, cluster, stop=stop)
    return runs


def smooth_losses(run: pl.Run, window: int) -> list[float]:
    """Return a moving mean of the losses."""
    losses = [record.loss for record in run.history]
    return [sum(losses[max(0, end - window) : end]) / min(end, window) for end in range(1, len(losses) + 1)]


def loss_at(strategy: str, run: pl.Run, name: str, limit: float) -> str:
    """Return the loss at a number of seconds or of bytes sent."""
    losses = smooth_losses(run, WINDOW * updates_a_batch(strategy))
    done = [loss for record, loss in zip(run.history, losses, strict=True) if record[name] <= limit]
    return f"{done[-1]:.3f}" if done and run.history[-1][name] >= limit else ""


def print_runs(title: str, runs: Runs, seconds: Sequence[float], megabytes: Sequence[float]) -> None:
    header = ("", "ms a batch", "batches to 97 %", "seconds to 97 %", "MB to 97 %", "consensus")
    rows = []
    for strategy, run in runs.items():
        times, found = updates_a_batch(strategy), run.record_at_target
        reached = (
            (f"{found.step / times:.0f}", f"{found.seconds:.2f}", f"{found.bytes / 1e6:.0f}")
            if found
            else ("", "", "")
        )
        distance = next((r["consensus"] for r in reversed(run.history) if "consensus" in r.extra), None)
        apart = "" if distance is None else f"{distance:.3g}"
        rows.append((strategy, f"{1e3 * times * run.step_seconds:.0f}", *reached, apart))
    print(f"\n{title}\n")
    print_table(header, rows)
    for name, limits, scale, unit in (("seconds", seconds, 1.0, "s"), ("bytes", megabytes, 1e6, "MB")):
        print(f"\nloss by {name} (empty: the run had ended)\n")
        print_table(
            ("", *(f"{limit:g} {unit}" for limit in limits)),
            [(s, *(loss_at(s, run, name, scale * limit) for limit in limits)) for s, run in runs.items()],
        )
    print()
    for line in verdict(runs):
        print(line)


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def verdict(runs: Runs) -> list[str]:
    """Return, by seconds and by bytes, the strategies that were better or worse than all-reduce."""
    lines = []
    for name, unit, scale in (("seconds", "s", 1.0), ("bytes", "MB", 1e6)):
        found = {s: record[name] / scale for s, run in runs.items() if (record := run.record_at_target)}
        by_all = found.get(STRATEGIES[0])
        if by_all is None:
            continue
        order = sorted(found, key=found.__getitem__)
        words = {s: f"{s} {figure(found[s])} {unit}" for s in order}
        better = [words[s] for s in order if found[s] < by_all]
        worse = [words[s] for s in order if found[s] > by_all]
        lines.append(f"{name} to the target: {words[STRATEGIES[0]]}")
        lines.append(f"  fewer: {', '.join(better) or 'none'}")
        lines.append(f"  more: {', '.join(worse) or 'none'}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", action="store_true", help="also in processes, over an emulated slow link")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write a report with the curves for the slow link"
    )
    options = parser.parse_args()
    megabytes = (100, 300, 1000)
    print_runs(f"{PEERS} simulated peers, {SLOW}", train_all(simulated(SLOW)), (2, 5, 10, 20), megabytes)
    print_runs(f"{PEERS} simulated peers, {FAST}", train_all(simulated(FAST)), (0.1, 0.2, 0.5, 1), megabytes)
    if options.real:
        runs = train_all(pl.Local(workers=PEERS, link=SLOW), stop=True)
        print_runs(f"{PEERS} processes, emulated {SLOW}", runs, (2, 5, 10, 20), megabytes)
    if options.report:
        pl.compare(task, STRATEGIES, simulated(SLOW), epochs=EPOCHS, baseline=False).report(options.report)


if __name__ == "__main__":
    main()
