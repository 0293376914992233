"""Speed of the simulator, against the same programs in SimPy. Both must end at the same virtual time.

A ring all-reduce moves a 1 MB vector around 64 ranks in 2 x 63 rounds, over ports that carry one message at a time.
Ours includes everything that `pl.train` does: contexts, tags, byte counts, a trace.

In `async` 1,000 workers push to a server and pull from it. Ours is `pl.train` from its call to the `Run`, with
history, staleness and every span. SimPy's program draws the same times, sends the same messages, and records nothing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy
import torch
from torch import nn

import paceline as pl
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from paceline.clusters.base.job import Job
from paceline.clusters.rank.streams import DELAY_STREAM
from paceline.clusters.simulated.simulated import Simulated
from paceline.collectives import all_reduce
from paceline.context import Context, Strategy
from paceline.costs import Link, times

RANKS = 64
VECTOR_BYTES = 2**20
CHUNK_BYTES = VECTOR_BYTES // RANKS
COLLECTIVES = 4  # one after another, so that a run is long enough to time
MESSAGES = COLLECTIVES * RANKS * 2 * (RANKS - 1)
ROUNDS = 9
LIMIT_S = 20.0
LINK = Link("10Gbps", "50us")

WORKERS = 1000
UPDATES = 20_000
MEAN_S = 1.0
SEED = 0
FEATURES = 1000


def measure() -> Result:
    ring = _measure(
        {
            "ring, message by message": lambda: _simulate(Ring()),
            "ring, by collectives.all_reduce": lambda: _simulate(Collective()),
            "ring, SimPy": _simulate_with_processes,
            "ring, SimPy with a callback instead of a process a message": _simulate_with_callbacks,
        },
        MESSAGES,
    )
    updates = _measure({"async": _simulate_async, "async, SimPy": _simulate_async_with_processes}, UPDATES)
    ours, collective, simpy_ring, callbacks = ring
    async_ours, async_simpy = updates
    return Result(
        title=(
            f"ring all-reduce of {VECTOR_BYTES:,} bytes on {RANKS} ranks (messages a second); "
            f"async with {WORKERS:,} workers (updates a second)"
        ),
        unit="1/s",
        rows=ring + updates,
        goals=[
            Goal(what="ring, message by message / SimPy", rounds=compare(ours, simpy_ring), at_least=3.5),
            Goal(what="ring, message by message / SimPy with callbacks", rounds=compare(ours, callbacks)),
            Goal(
                what="ring, collectives.all_reduce / SimPy",
                rounds=compare(collective, simpy_ring),
                at_least=4,
            ),
            Goal(what="async / SimPy", rounds=compare(async_ours, async_simpy), at_least=1),
        ],
    )


def _measure(contenders: dict[str, Callable[[], float]], count: int) -> list[Row]:
    """Return the rate of each contender: `count` divided by its seconds."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in rounds(ROUNDS, LIMIT_S):
        ends_s = [_timed(run, count, rates[name]) for name, run in contenders.items()]
        assert max(ends_s) - min(ends_s) < 1e-9, f"the simulations disagree: {ends_s} virtual seconds"
    return [Row(what=name, rounds=rate) for name, rate in rates.items()]


def _timed(run: Callable[[], float], count: int, rates: list[float]) -> float:
    gc.collect()  # do not charge the garbage of the previous run to this one
    start_s = time.process_time()
    end_s = run()
    rates.append(count / (time.process_time() - start_s))
    return end_s


# Ours


class Ring(Strategy):
    """The messages of a ring all-reduce, without the sums, which take no virtual time."""

    async def worker(self, ctx: Context) -> None:
        chunk = torch.empty(CHUNK_BYTES // 4, device="meta")
        right, left = (ctx.rank + 1) % RANKS, (ctx.rank - 1) % RANKS
        for _ in range(COLLECTIVES * 2 * (RANKS - 1)):
            ctx.start(ctx.net.send(right, chunk))
            await ctx.net.recv(left)


class Collective(Ring):
    """The same messages as a collective, like in strategies: with many ranks it is timed as a whole."""

    async def worker(self, ctx: Context) -> None:
        vector = torch.empty(VECTOR_BYTES // 4, device="meta")
        for _ in range(COLLECTIVES):
            await all_reduce(ctx, vector, "ring")


def _simulate(strategy: Ring) -> float:
    cluster = Simulated(workers=RANKS, compute=times.Constant(0.0), link=LINK, math="none")
    outcomes = cluster.run(Job(strategy=strategy, roles=tuple(strategy.roles(RANKS)), seed=0))
    assert sum(outcome.messages_sent for outcome in outcomes) == MESSAGES
    return max(outcome.seconds for outcome in outcomes)


def _simulate_async() -> float:
    task = pl.Task(
        model=lambda: nn.Linear(FEATURES, 1, bias=False),
        data=(torch.zeros(WORKERS, FEATURES), torch.zeros(WORKERS, 1)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=WORKERS,
    )
    cluster = Simulated(workers=WORKERS, compute=times.Exponential(MEAN_S), link=LINK, math="none")
    run = pl.train(task, "async", cluster, steps=UPDATES, seed=SEED)
    assert sum(run.staleness.values()) == UPDATES
    return run.seconds


# The baseline


class Ports:
    """Times at which the ports of each rank are free. In SimPy a list is faster than a Resource."""

    def __init__(self, env: simpy.Environment, ranks: int) -> None:
        self._env = env
        self._out_s = [0.0] * ranks
        self._in_s = [0.0] * ranks

    def until_delivery_s(self, source: int, to: int, nbytes: int) -> float:
        """Reserve both ports for a message that is sent now. Return the seconds until its delivery."""
        busy_s = nbytes * LINK.seconds_per_byte
        start_s = max(self._env.now, self._out_s[source])
        self._out_s[source] = start_s + busy_s
        begin_s = max(start_s + LINK.latency_s, self._in_s[to])
        self._in_s[to] = begin_s + busy_s
        return self._in_s[to] - self._env.now


Send = Callable[[int, int, int], object]


def _simulate_with_processes() -> float:
    """Simulate as in SimPy's documentation ("Event Latency"): a process carries each message to its Store."""

    def network(env: simpy.Environment, channels: list[simpy.Store]) -> Send:
        ports = Ports(env, RANKS)

        def carry(source: int, to: int, nbytes: int) -> Generator[Any, Any, None]:
            yield env.timeout(ports.until_delivery_s(source, to, nbytes))
            channels[to].put((source, nbytes))

        return lambda source, to, nbytes: env.process(carry(source, to, nbytes))

    return _run_simpy(network)


def _simulate_with_callbacks() -> float:
    """Simulate closer to SimPy's engine: the end of a Timeout puts the message into its Store."""

    def network(env: simpy.Environment, channels: list[simpy.Store]) -> Send:
        ports = Ports(env, RANKS)

        def put(channel: simpy.Store, event: simpy.Event) -> None:
            channel.put(event.value)

        def send(source: int, to: int, nbytes: int) -> None:
            arrival = env.timeout(ports.until_delivery_s(source, to, nbytes), (source, nbytes))
            arrival.callbacks.append(lambda event: put(channels[to], event))

        return send

    return _run_simpy(network)


def _run_simpy(network: Callable[[simpy.Environment, list[simpy.Store]], Send]) -> float:
    env = simpy.Environment()
    channels = [simpy.Store(env) for _ in range(RANKS)]  # by receiver: in a ring each has one sender
    send = network(env, channels)

    def worker(rank: int) -> Generator[Any, Any, None]:
        for _ in range(COLLECTIVES * 2 * (RANKS - 1)):
            send(rank, (rank + 1) % RANKS, CHUNK_BYTES)
            yield channels[rank].get()

    for rank in range(RANKS):
        env.process(worker(rank))
    env.run()
    return float(env.now)


def _simulate_async_with_processes() -> float:
    """Simulate with a process for each worker, for the server, and for each message."""
    env = simpy.Environment()
    channels = [simpy.Store(env) for _ in range(WORKERS + 1)]
    ports, server_rank, nbytes = Ports(env, WORKERS + 1), WORKERS, 4 * FEATURES

    def carry(source: int, to: int) -> Generator[Any, Any, None]:
        yield env.timeout(ports.until_delivery_s(source, to, nbytes))
        channels[to].put(source)

    def worker(rank: int) -> Generator[Any, Any, None]:
        rng = np.random.default_rng([SEED, rank, DELAY_STREAM])  # the same times as ours
        while True:
            yield env.timeout(rng.exponential(MEAN_S))
            env.process(carry(rank, server_rank))
            yield channels[rank].get()

    def server() -> Generator[Any, Any, None]:
        for _ in range(UPDATES):
            source = yield channels[server_rank].get()
            env.process(carry(server_rank, source))

    for rank in range(WORKERS):
        env.process(worker(rank))
    env.run(until=env.process(server()))
    return float(env.now)
