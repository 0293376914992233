"""An all-reduce of 4 MiB by two hosts of two workers, over a link of 100 Mbit/s: hierarchical against the flat ring.

The hosts are network namespaces joined by veth pairs, shaped with `tc tbf`. Their processes are started as by a
launcher (`pl.Launched`). In the flat ring each host's link carries 2 n (p - 1)/p = 1.5 n bytes, in the hierarchical
algorithm n. The formulas predict these bytes divided by the bandwidth; everything else is fast in comparison. Headers
of TCP and Ethernet take about 4.5 % of the link, which the formulas do not include.
"""

from __future__ import annotations

import time

import torch

import paceline as pl
from benchmarks.result import Goal, Result, Row, compare
from paceline.collectives import all_reduce, barrier
from paceline.context import Context
from tests.clusters.namespaces import Hosts, can_make_hosts, several_hosts

ALGORITHMS = ("ring", "hierarchical")
NBYTES = 4 * 2**20
BITS_A_SECOND = 100e6
ROUNDS = 7
WORKERS_A_HOST = 2
# Bytes on each host's link, in units of the tensor.
CARRIED = {"ring": 1.5, "hierarchical": 1.0}
TITLE = f"seconds of an all-reduce of {NBYTES // 2**20} MiB, 2 hosts of 2 workers, 100 Mbit/s, encrypted"


def measure() -> Result:
    reason = can_make_hosts()
    if reason:
        return Result(title=TITLE, unit="s", rows=[], goals=[], unmeasured=[f"two hosts: {reason}"])
    with several_hosts(2, cpus=0, rate="100mbit") as hosts:
        return _result(_launch(hosts))


def _result(seconds: dict[str, list[float]]) -> Result:
    rows = {name: Row(what=name, rounds=seconds[name]) for name in ALGORITHMS}
    ratio = compare(rows["hierarchical"], rows["ring"])
    goals = [Goal(what="hierarchical / ring (the formulas say 0.67)", rounds=ratio, at_most=0.75)]
    for name, row in rows.items():
        predicted_s = CARRIED[name] * NBYTES * 8 / BITS_A_SECOND
        off = [max(s / predicted_s, predicted_s / s) for s in row.rounds]
        goals.append(Goal(what=f"{name}: the formula is off by a factor of", rounds=off, at_most=1.15))
    return Result(title=TITLE, unit="s", rows=list(rows.values()), goals=goals)


def _launch(hosts: Hosts) -> dict[str, list[float]]:
    """Start one process per rank. Ranks of one host are adjacent."""
    ranks = WORKERS_A_HOST * len(hosts.hosts)
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": hosts.hosts[0].address, "OMP_NUM_THREADS": "1"}
    drivers = [hosts.driver(rank // WORKERS_A_HOST, RANK=str(rank), **common) for rank in range(ranks)]
    for driver in drivers:
        driver.start(_seconds)
    found: list[dict[str, list[float]]] = [driver.result() for driver in drivers]
    return found[0]


def _seconds() -> dict[str, list[float]]:
    """Return the seconds of each round, by algorithm. The slowest rank determines the time."""
    results = pl.run_program(_program, pl.Launched()).results
    return {
        name: [max(each) for each in zip(*(result[i] for result in results), strict=True)]
        for i, name in enumerate(ALGORITHMS)
    }


async def _program(ctx: Context) -> list[list[float]]:
    """Return the seconds of each algorithm in each round. The algorithms alternate."""
    data = torch.ones(NBYTES // 4)
    taken: list[list[float]] = [[] for _ in ALGORITHMS]
    for number in range(ROUNDS + 1):
        for i, algorithm in enumerate(ALGORITHMS):
            await barrier(ctx)
            began_s = time.monotonic()
            await all_reduce(ctx, data, algorithm)
            if number:  # the first round opens the connections
                taken[i].append(time.monotonic() - began_s)
            data.fill_(1.0)
    return taken
