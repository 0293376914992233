"""Federated averaging on the digits: the cost of skewed clients, and strategies that reduce it.

There are 20 simulated clients on a slow link. Half of them are sampled in a round. Each has all digits (IID) or only a
few (Dirichlet). To see the clients first:

    paceline partition examples/digits.py --clients 20 --partition dirichlet --alpha 0.1 --plot clients.svg
    python examples/federated.py
"""

import dataclasses
import sys
from pathlib import Path

import paceline as pl
from paceline.cli.table import print_table
from paceline.costs.units import format_bytes

CLIENTS = 20
ROUNDS = 40
TARGET = 0.95

STRATEGIES = ("fedavg", "fedprox:mu=0.1", "fedadam:server_lr=0.03")
DATA = {"IID": "partition=iid", "Dirichlet, alpha 0.1": "partition=dirichlet,alpha=0.1"}
ROUND = "fraction=0.5,epochs=2,batch=16"

HEADER = (
    "clients' digits",
    "strategy",
    f"rounds to {TARGET:.0%}",
    "sent by then",
    "seconds",
    "last accuracy",
)


def row(data: str, strategy: str, run: pl.Run) -> tuple[str, ...]:
    reached = next((record for record in run.history if (record.metric or 0.0) >= TARGET), None)
    figures = (
        (f"{reached.step}", format_bytes(reached.bytes), f"{reached.seconds:.1f}")
        if reached
        else (f"not in {ROUNDS}", "", "")
    )
    return (data, strategy, *figures)


def main() -> None:
    digits = pl.load_task(Path(__file__).with_name("digits.py"))
    task = dataclasses.replace(digits, target=TARGET)
    cluster = pl.Simulated(CLIENTS, compute=pl.times.Constant(0.005), link=pl.Link("20Mbps", "20ms"))
    print(f"Handwritten digits on {cluster}; {ROUND}.\n")
    rows = []
    for data, partition in DATA.items():
        for strategy in STRATEGIES:
            print(f"training with {strategy} on {data} clients", file=sys.stderr)
            spec = f"{strategy}{',' if ':' in strategy else ':'}{partition},{ROUND}"
            run = pl.train(task, spec, cluster, steps=ROUNDS, evaluate_every=1, stop_at_target=True)
            rows.append(row(data, strategy, run))
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
