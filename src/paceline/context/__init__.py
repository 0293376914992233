"""What a strategy may ask of its world: protocols, no logic.

A strategy is a set of role programs, `async def worker(self, ctx)` and the like, written against `Context`. A context
has three parts: `ctx.model` (what is learned), `ctx.net` (how ranks talk) and `ctx.log` (what is written down). The
worlds that supply them (processes, simulated time) may differ in how they wait and in nothing else:

- In a world of real processes an await blocks until its operation is done, and never suspends.
- In the simulated world an await suspends into a heap of virtual time.

An operation begins when it is awaited or handed to `start`, in every world: not when it is made. Concurrency exists
only through handles: `start` begins an operation or a whole coroutine, `await handle` ends it. Every span of time is
recorded by the world, never by a strategy.
"""

from __future__ import annotations

from paceline.context.batch import Batch
from paceline.context.crossing import Crossing
from paceline.context.handles import Handle, Sending
from paceline.context.log import Log
from paceline.context.model import BUCKET_BYTES, Data, Model
from paceline.context.net import ANY, Combine, Message, Net, Window
from paceline.context.pieces import BackwardPart, Pieces
from paceline.context.rank import Context, Program, Strategy
from paceline.context.segment import Joining, Segment, Together
from paceline.context.shards import Shards

__all__ = [
    "ANY",
    "BUCKET_BYTES",
    "BackwardPart",
    "Batch",
    "Combine",
    "Context",
    "Crossing",
    "Data",
    "Handle",
    "Joining",
    "Log",
    "Message",
    "Model",
    "Net",
    "Pieces",
    "Program",
    "Segment",
    "Sending",
    "Shards",
    "Strategy",
    "Together",
    "Window",
]
