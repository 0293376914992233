"""Random programs of ring collectives and other messages, to compare whole timing with single messages."""

import random

import torch

from paceline.collectives import all_gather, all_reduce, reduce_scatter
from paceline.errors import PeerLost
from paceline.schedules.collectives.steps import chunk_bounds

__all__ = ["MESSAGE_BYTES", "draw_script", "run_script", "start_script"]

MESSAGE_BYTES = (101, 999, 20_001)
"""Sizes of messages outside collectives. No message of a collective has one of these sizes."""

LENGTHS = (1, 7, 40, 301, 3000)
PATTERNS = {
    "all-reduce": lambda net, data: all_reduce(net, data, "ring"),
    "reduce-scatter": reduce_scatter,
    "all-gather": all_gather,
}


def draw_script(seed, size):
    """Return actions that all ranks perform in this order: collectives, messages and pauses."""
    rng = random.Random(seed)
    actions = []
    for _ in range(rng.randint(3, 9)):
        actions.append(_draw_collective(rng, size) if rng.random() < 0.55 else _draw_message(rng, size))
        pausing = [rank for rank in range(size) if rng.random() < 0.5]
        actions += [("pause", rank, rng.expovariate(2000)) for rank in pausing]
    return actions


def _draw_collective(rng, size):
    members = list(range(size)) if rng.random() < 0.6 else rng.sample(range(size), rng.randint(4, size))
    in_background = rng.choice([0, 0, 0.5, 1])
    started = {rank for rank in members if rng.random() < in_background}
    return "collective", rng.choice(list(PATTERNS)), members, rng.choice(LENGTHS), started


def _draw_message(rng, size):
    source, to = rng.sample(range(size), 2)
    return "message", source, to, rng.choice(MESSAGE_BYTES), rng.random() < 0.5


def _collective(ctx, number, action):
    """Return the awaitable of a rank's part, and a function for the value of its result."""
    _, pattern, members, length, _ = action
    net = ctx.net if members == list(range(ctx.net.size)) else ctx.net.split(members)
    data = torch.randn(length, generator=torch.Generator().manual_seed(1000 * number + ctx.rank))
    bounds = chunk_bounds(length, net.size)
    own = slice(bounds[net.rank], bounds[net.rank + 1]) if pattern == "reduce-scatter" else slice(None)
    return PATTERNS[pattern](net, data), lambda: data[own].sum().item()


async def run_script(ctx, actions):
    """Perform the actions. Return the time at which each ended, and its value."""
    seen, handles = [], []
    for number, action in enumerate(actions):
        if action[0] == "pause" and action[1] == ctx.rank:
            await ctx.sleep(action[2])
        elif action[0] == "collective" and ctx.rank in action[2]:
            work, value = _collective(ctx, number, action)
            handles.append((number, ctx.start(work), value))
            if ctx.rank not in action[4]:
                await handles[-1][1]
                seen.append((number, ctx.now()))
        elif action[0] == "message" and ctx.rank in action[1:3]:
            handle = _start_message(ctx, number, action)
            handles.append((number, handle, lambda: None))
            if action[4]:
                await handle
                seen.append((number, ctx.now()))
    for number, handle, value in handles:
        await handle
        seen.append((number, ctx.now(), value()))
    return seen


def _start_message(ctx, number, action):
    _, source, to, nbytes, _ = action
    if ctx.rank == source:
        return ctx.start(ctx.net.send(to, torch.zeros(nbytes, dtype=torch.uint8), tag=number))
    return ctx.start(ctx.net.recv(source, tag=number))


async def start_script(ctx, actions, until_s):
    """Start all actions in the background. Return which have ended at `until_s`, their values, and lost ranks."""
    handles, losses = [], []

    async def pause_until(end_s):
        while ctx.now() < end_s:
            try:
                await ctx.sleep(end_s - ctx.now())
            except PeerLost as loss:
                losses.append((ctx.now(), loss.rank, str(loss)))

    for number, action in enumerate(actions):
        if action[0] == "pause" and action[1] == ctx.rank:
            await pause_until(ctx.now() + action[2])
        elif action[0] == "collective" and ctx.rank in action[2]:
            work, value = _collective(ctx, number, action)
            handles.append((number, ctx.start(work), value))
        elif action[0] == "message" and ctx.rank in action[1:3]:
            handles.append((number, _start_message(ctx, number, action), lambda: None))
    await pause_until(until_s)
    seen = [(number, handle.done, value()) for number, handle, value in handles]
    for _, handle, _ in handles:
        handle.cancel()
    return seen, losses
