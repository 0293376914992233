"""Launched processes on two hosts whose clocks differ by 1,000 seconds, over a link of 100 Mbit/s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from clusters.namespaces import Hosts, can_make_hosts, several_hosts

import paceline as pl
from paceline.trace import Kind, Trace

RANKS = 4
STEPS = 6

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(can_make_hosts()), reason=f"no hosts here: {can_make_hosts()}"),
    pytest.mark.xdist_group("hosts"),  # made once
]


def regression() -> pl.Task:
    inputs = torch.randn(64, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return pl.Task(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(40, 30), torch.nn.Tanh(), torch.nn.Linear(30, 3)
        ).double(),
        data=(inputs, inputs[:, :3].tanh()),
        test=(inputs, inputs[:, :3].tanh()),
        metric=lambda outputs, targets: -float(((outputs - targets) ** 2).mean()),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        batch_size=16,
    )


def train(strategy: str) -> tuple[torch.Tensor, list[Any], Trace, dict[str, str]]:
    """In each process of the run."""
    run = pl.train(regression(), strategy, pl.Launched(threads=1), steps=STEPS, evaluate_every=2)
    return run.parameters, run.history, run.trace, run.environment


@pytest.fixture(scope="module")
def drivers() -> Iterator[list[Any]]:
    with several_hosts(2, cpus=0) as hosts:
        yield _drivers(hosts)


def _drivers(hosts: Hosts) -> list[Any]:
    words = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": hosts.hosts[0].address, "OMP_NUM_THREADS": "1"}
    return [hosts.driver(rank // 2, RANK=str(rank), **words) for rank in range(RANKS)]


def together(drivers: list[Any], strategy: str) -> list[Any]:
    for driver in drivers:
        driver.start(train, strategy)
    return [driver.result() for driver in drivers]


@pytest.mark.parametrize(
    "strategy",
    [
        "all-reduce:algorithm=hierarchical",
        "all-reduce:algorithm=ring",
        "decentralized:topology=ring",
        "fedavg",
    ],
)
def test_two_hosts_give_the_weights_of_one_bit_for_bit(strategy: str, drivers: list[Any]):
    found = together(drivers, strategy)
    workers = RANKS - (strategy == "fedavg")
    # Each rank as if on a host of its own, or else two hosts: the order of sums is the algorithm's.
    if "hierarchical" in strategy:
        here = pl.Simulated(workers=workers, hosts=2, threads=1)
    else:
        here = pl.Local(workers=workers, threads=1)
    expected = pl.train(regression(), strategy, here, steps=STEPS, evaluate_every=2)
    for parameters, history, _, _ in found:
        assert torch.equal(parameters, expected.parameters)
        assert [record.metric for record in history] == [record.metric for record in expected.history]


def test_auto_is_hierarchical_and_hosts_talk_encrypted(drivers: list[Any]):
    parameters, _, trace, environment = together(drivers, "all-reduce")[3]
    expected = pl.train(
        regression(),
        "all-reduce:algorithm=hierarchical",
        pl.Simulated(workers=RANKS, hosts=2, threads=1),
        steps=STEPS,
    )
    assert torch.equal(parameters, expected.parameters)
    assert [spans.host for spans in trace.spans] == [0, 0, 1, 1]
    assert environment["hosts"] == "host0: 0-1; host1: 2-3"
    assert environment["link"] == "encrypted TCP"


def test_clocks_are_one_so_that_nothing_arrives_before_it_was_sent(drivers: list[Any]):
    _, _, trace, _ = together(drivers, "all-reduce:algorithm=ring")[0]
    residual_s = trace.clock_residual_s
    assert 0 < residual_s < 1
    assert "the clocks of 2 hosts are one to within" in str(trace.summary())
    sent = {int(s["message"]): (each.rank, s) for each in trace.spans for s in each.of(Kind.SEND)}
    received = {int(s["message"]): (each.rank, s) for each in trace.spans for s in each.of(Kind.RECEIVE)}
    assert sent.keys() == received.keys()
    # In the ring rank 1 sends to rank 2, which is on the other host, message after message.
    assert (1, 2) in {(rank, int(send["peer"])) for rank, send in sent.values()}
    for message, (rank, send) in sent.items():
        receiver, receive = received[message]
        assert (receiver, rank) == (send["peer"], receive["peer"])
        assert receive["end_s"] > send["start_s"] - 2 * residual_s
        assert receive["end_s"] < send["start_s"] + 100
