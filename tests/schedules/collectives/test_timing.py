"""The timers against a simulator that knows nothing of plans, and against the published formulas."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import has, raised, refused

from paceline.schedules.collectives import ALL_REDUCE, COLLECTIVES, group_plan
from paceline.schedules.collectives.network import NetworkCosts, chunk_bytes, link_cost
from paceline.schedules.collectives.steps import (
    Chunks,
    Recv,
    Reduce,
    Schedule,
    Send,
    chunk_bounds,
    chunk_slice,
)
from paceline.schedules.collectives.timing import time_schedule
from paceline.schedules.collectives.wavefront import OutOfOrder, run_wavefront
from paceline.testing.schedules.validate import ScheduleError

EVERY = [(goal, name) for goal, table in COLLECTIVES.items() for name in table]


class Reference:
    """Every rank is a generator that yields the time at which it continues, or None to wait."""

    def __init__(
        self, schedules, length, itemsize, arrivals, out_free, in_free, latency, per_byte, bounds=None
    ):
        self.itemsize, self.latency, self.per_byte = itemsize, latency, per_byte
        self.bounds = bounds or chunk_bounds(length, schedules[0].chunks)
        self.out_free, self.in_free = list(out_free), list(in_free)
        self.delivered = defaultdict(deque)
        self.finish = [None] * len(schedules)
        self.events = []
        self.serial = 0
        self.waiting = set()
        self.programs = [
            self.program(r, s, a) for r, (s, a) in enumerate(zip(schedules, arrivals, strict=True))
        ]

    def program(self, rank: int, schedule: Schedule, now: float):
        yield now
        for steps in schedule.rounds:
            ends = [now]
            for step in steps:
                if isinstance(step, Send):
                    ends.append(self.send(rank, step, now))
            for step in steps:
                if isinstance(step, Recv | Reduce):
                    while not self.delivered[step.source, rank]:
                        yield None
                    ends.append(self.delivered[step.source, rank].popleft())
            now = max(ends)
            yield now
        self.finish[rank] = now

    def send(self, rank: int, step: Send, now: float) -> float:
        where = chunk_slice(step.chunks, self.bounds)
        seconds = (where.stop - where.start) * self.itemsize * self.per_byte[rank][step.to]
        start = max(now, self.out_free[rank])
        self.out_free[rank] = start + seconds
        self.serial += 1
        arrival = start + self.latency[rank][step.to]
        heapq.heappush(self.events, (arrival, 1, start, rank, self.serial, step.to, seconds))
        return self.out_free[rank]

    def wake(self, rank: int) -> None:
        wish = next(self.programs[rank], "ended")
        if wish is None:
            self.waiting.add(rank)
        elif wish != "ended":
            heapq.heappush(self.events, (wish, 0, 0.0, rank, 0, rank, 0.0))

    def run(self):
        for rank in range(len(self.programs)):
            self.wake(rank)
        while self.events:
            now, kind, _, source, _, rank, seconds = heapq.heappop(self.events)
            if kind == 1:
                self.in_free[rank] = max(now, self.in_free[rank]) + seconds
                self.delivered[source, rank].append(self.in_free[rank])
            if kind == 0 or rank in self.waiting:
                self.waiting.discard(rank)
                self.wake(rank)
        return self.finish, self.out_free, self.in_free


@st.composite
def cases(draw, goals=EVERY, ties=None):
    goal, name = draw(st.sampled_from(goals))
    size = draw(st.integers(1, 17))
    length = draw(st.integers(0, 40)) * (size if goal == "all-to-all" else 1)
    # With whole numbers, messages arrive at the same time or take no time. With fractions, they do not.
    ties = draw(st.booleans()) if ties is None else ties
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def drawn(high: float, *shape: int) -> np.ndarray:
        return chance.integers(0, int(high) + 1, shape).astype(float) if ties else chance.random(shape) * high

    scale = draw(st.sampled_from([0.0, 1.0, 30.0]))
    even = draw(st.booleans())
    shape = (1, 1) if even else (size, size)
    latency = np.broadcast_to(drawn(scale, *shape), (size, size))
    per_byte = np.broadcast_to(drawn(3, *shape), (size, size)) / 4
    arrivals = drawn(draw(st.sampled_from([0.0, 3.0, 100.0])), size)
    busy = draw(st.booleans())
    ports = [drawn(20, size) if busy else np.full(size, arrivals.min()) for _ in range(2)]
    options = {"hosts": chance.integers(0, 4, size).tolist()} if name == "hierarchical" else {}
    return goal, name, size, options, length, latency, per_byte, arrivals, *ports


def schedules_of(goal, name, size, options):
    return [COLLECTIVES[goal][name](rank, size, **options) for rank in range(size)]


def same(found, expected) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


MESSAGES_AT_THE_SAME_TIME = (
    *("all-reduce", "halving-doubling", 8, {}, 13, np.ones((8, 8)), np.full((8, 8), 0.25), np.zeros(8)),
    np.array([12.0, 9, 3, 8, 4, 5, 10, 14]),
    np.array([19.0, 1, 15, 0, 8, 6, 1, 13]),
)
"""Messages of two senders start and arrive at the same time, but were called at different times: the order is that of
the ranks."""


@settings(max_examples=250, deadline=None)
@example(MESSAGES_AT_THE_SAME_TIME)
@given(cases())
def test_schedules_and_plans_are_timed_as_message_by_message(case):
    *which, length, latency, per_byte, arrivals, out_free, in_free = case
    schedules = schedules_of(*which)
    expected = Reference(schedules, length, 4, arrivals, out_free, in_free, latency, per_byte).run()
    goal, name, size, options = which
    for group in (schedules, group_plan(goal, name, size, **options)):
        timing = time_schedule(
            group,
            length=length,
            itemsize=4,
            arrivals_s=arrivals,
            latency_s=latency,
            seconds_per_byte=per_byte,
            out_free_s=out_free,
            in_free_s=in_free,
        )
        same((timing.finish_s, timing.out_free_s, timing.in_free_s), expected)


@settings(max_examples=250, deadline=None)
@given(cases())
def test_the_wavefront_is_exact_or_says_that_it_is_not(case):
    (goal, name, size, options), (length, latency, per_byte, *state) = case[:4], case[4:]
    plan = group_plan(goal, name, size, **options)
    sizes = chunk_bytes(length, 4, plan.chunks, plan.scratch)
    network = NetworkCosts(sizes, link_cost(latency, "", size), link_cost(per_byte, "", size))
    try:
        found = run_wavefront(plan, network, *state)
    except OutOfOrder:
        return
    schedules = schedules_of(goal, name, size, options)
    same(found, Reference(schedules, length, 4, *state, latency, per_byte).run())


RINGS = [("all-reduce", "ring"), ("all-gather", "ring"), ("reduce-scatter", "ring")]


@settings(max_examples=100, deadline=None)
@given(cases(goals=RINGS))
def test_around_a_ring_nothing_can_overtake_anything(case):
    (goal, name, size, _), (length, latency, per_byte, *state) = case[:4], case[4:]
    plan = group_plan(goal, name, size)
    network = NetworkCosts(
        chunk_bytes(length, 4, plan.chunks, 1), link_cost(latency, "", size), link_cost(per_byte, "", size)
    )
    schedules = schedules_of(goal, name, size, {})
    expected = Reference(schedules, length, 4, *state, latency, per_byte).run()
    same(run_wavefront(plan, network, *state), expected)


@settings(max_examples=50, deadline=None)
@given(cases(goals=RINGS[1:]), st.integers(0, 2**32 - 1))
def test_chunks_of_any_length_are_timed_as_message_by_message(case, seed):
    (goal, name, size, _), (length, latency, per_byte, arrivals, *ports) = case[:4], case[4:]
    cuts = np.random.default_rng(seed).integers(0, length + 1, size - 1)
    bounds = [0, *sorted(cuts.tolist()), length]
    schedules = schedules_of(goal, name, size, {})
    expected = Reference(schedules, length, 4, arrivals, *ports, latency, per_byte, bounds).run()
    for group in (schedules, group_plan(goal, name, size)):
        costs = {"arrivals_s": arrivals, "latency_s": latency, "seconds_per_byte": per_byte}
        free = {"out_free_s": ports[0], "in_free_s": ports[1]}
        timing = time_schedule(group, length=length, itemsize=4, bounds=bounds, **costs, **free)
        same((timing.finish_s, timing.out_free_s, timing.in_free_s), expected)


@pytest.mark.parametrize("name", ["tree", "all-to-all", "recursive-doubling", "halving-doubling", "ring"])
@pytest.mark.parametrize("size", [64, pytest.param(100, marks=pytest.mark.slow)])
def test_large_groups_are_timed_as_message_by_message(name: str, size: int):
    chance = np.random.default_rng(size)
    latency, per_byte = np.full((size, size), 1e-3), np.full((size, size), 1e-6)
    schedules = schedules_of("all-reduce", name, size, {})
    for arrivals in (np.zeros(size), chance.exponential(1.0, size)):
        idle = np.full(size, arrivals.min())
        expected = Reference(schedules, 1001, 4, arrivals, idle, idle, latency, per_byte).run()
        timing = time_schedule(
            group_plan("all-reduce", name, size),
            length=1001,
            itemsize=4,
            arrivals_s=arrivals,
            latency_s=1e-3,
            seconds_per_byte=1e-6,
        )
        same((timing.finish_s, timing.out_free_s, timing.in_free_s), expected)


def lg(size: int) -> int:
    return math.ceil(math.log2(size))


POWERS = [2, 4, 8, 16]
ANY = [*POWERS, 3, 5, 6, 7, 12, 17]
# Seconds of n bytes on p ranks, latency a, b seconds a byte, where latencies of messages on their way together overlap.
FORMULAS = {
    "reduce-broadcast": (ANY, lambda n, p, a, b: 2 * (p - 1) * n * b + 2 * a),
    "tree": (POWERS, lambda n, p, a, b: 2 * lg(p) * (a + n * b)),
    "all-to-all": (ANY, lambda n, p, a, b: (p - 1) * n * b + a),
    "naive-ring": (ANY, lambda n, p, a, b: 2 * (p - 1) * (a + n * b)),
    "ring": (ANY, lambda n, p, a, b: 2 * (p - 1) * a + 2 * n * (p - 1) / p * b),
    "recursive-doubling": (POWERS, lambda n, p, a, b: lg(p) * (a + n * b)),
    "halving-doubling": (POWERS, lambda n, p, a, b: 2 * lg(p) * a + 2 * n * (p - 1) / p * b),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("length", [1_000, 1_000_003])
def test_an_all_reduce_takes_the_seconds_of_its_formula(name: str, length: int):
    sizes, seconds = FORMULAS[name]
    latency, per_byte = 5e-5, 8e-10
    for size in sizes:
        timing = time_schedule(
            group_plan("all-reduce", name, size),
            length=length,
            itemsize=4,
            arrivals_s=0.0,
            latency_s=latency,
            seconds_per_byte=per_byte,
        )
        assert timing.finish_s.max() == pytest.approx(seconds(4 * length, size, latency, per_byte), rel=0.01)


@pytest.mark.parametrize(("hosts", "local"), [(2, 4), (3, 3), (5, 8)])
def test_a_hierarchy_takes_the_seconds_of_its_formula(hosts: int, local: int):
    where = np.repeat(np.arange(hosts), local)
    size, n = hosts * local, 4_000_000
    latency = np.where(where[:, None] == where, 1e-6, 5e-5)
    per_byte = np.where(where[:, None] == where, 1e-11, 8e-10)
    timing = time_schedule(
        group_plan("all-reduce", "hierarchical", size, hosts=where.tolist()),
        length=n // 4,
        itemsize=4,
        arrivals_s=0.0,
        latency_s=latency,
        seconds_per_byte=lambda sources, targets: per_byte[sources, targets],
    )
    inside = 2 * (local - 1) * (1e-6 + n / local * 1e-11)
    outside = 2 * (hosts - 1) * (5e-5 + n / local / hosts * 8e-10)
    assert timing.finish_s.max() == pytest.approx(inside + outside, rel=0.01)


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_a_barrier_takes_lg_p_latencies_and_lets_nobody_leave_before_the_last_has_come(size: int):
    arrivals = np.arange(size, dtype=float)
    even = {"length": 10, "itemsize": 4, "latency_s": 0.25, "seconds_per_byte": 1.0}
    plan = group_plan("barrier", "dissemination", size)
    together = time_schedule(plan, arrivals_s=0.0, **even)
    assert together.finish_s.tolist() == [0.25 * (size - 1).bit_length()] * size
    uneven = time_schedule(plan, arrivals_s=arrivals, **even)
    assert uneven.finish_s.min() >= arrivals.max()


def test_a_late_rank_delays_everyone_by_no_more_than_its_lateness():
    even = {"length": 1200, "itemsize": 4, "latency_s": 1e-3, "seconds_per_byte": 1e-6}
    for name in ALL_REDUCE:
        plan = group_plan("all-reduce", name, 12)
        prompt = time_schedule(plan, arrivals_s=0.0, **even)
        late = time_schedule(plan, arrivals_s=[5.0] + [0.0] * 11, **even)
        assert 5.0 <= late.finish_s.max() <= 5.0 + prompt.finish_s.max() + 1e-9


def test_ports_that_are_busy_delay_the_start():
    plan = group_plan("all-reduce", "ring", 4)
    costs = {"length": 400, "itemsize": 1, "arrivals_s": 0.0, "latency_s": 0.0, "seconds_per_byte": 0.01}
    assert time_schedule(plan, **costs).finish_s.max() == pytest.approx(6.0)
    assert time_schedule(plan, out_free_s=np.full(4, 2.0), **costs).finish_s.max() == pytest.approx(8.0)
    assert time_schedule(plan, in_free_s=np.full(4, 2.0), **costs).finish_s.max() == pytest.approx(8.0)


def test_a_second_collective_may_follow_with_the_ports_as_the_first_left_them():
    plan = group_plan("all-reduce", "reduce-broadcast", 5)
    costs = {"length": 100, "itemsize": 4, "latency_s": 0.5, "seconds_per_byte": 0.01}
    first = time_schedule(plan, arrivals_s=0.0, **costs)
    second = time_schedule(
        plan, arrivals_s=first.finish_s, out_free_s=first.out_free_s, in_free_s=first.in_free_s, **costs
    )
    twice = [
        Schedule(1, schedule.rounds * 2) for schedule in schedules_of("all-reduce", "reduce-broadcast", 5, {})
    ]
    np.testing.assert_allclose(second.finish_s, time_schedule(twice, arrivals_s=0.0, **costs).finish_s)


def test_schedules_that_deadlock_are_not_given_a_time():
    wait_first = [
        Schedule(1, ((Recv(1 - rank, Chunks(0, 1)),), (Send(1 - rank, Chunks(0, 1)),))) for rank in range(2)
    ]
    with raised(ScheduleError, fault="deadlock"):
        time_schedule(wait_first, length=1, itemsize=4, arrivals_s=0.0, latency_s=0.0, seconds_per_byte=0.0)


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ({"arrivals_s": [0.0, 1.0]}, refused("arrivals_s", (2,), bound=has(3))),
        ({"out_free_s": np.zeros((3, 3))}, refused("out_free_s", (3, 3))),
        ({"latency_s": -1.0}, refused("latency_s", -1.0)),
        ({"seconds_per_byte": np.zeros((2, 2))}, refused("seconds_per_byte", (2, 2), bound=has(3))),
    ],
)
def test_wrong_costs_are_refused(wrong: dict, refusal):
    right = {"length": 3, "itemsize": 4, "arrivals_s": 0.0, "latency_s": 0.0, "seconds_per_byte": 0.0}
    with refusal:
        time_schedule(group_plan("all-reduce", "ring", 3), **(right | wrong))
