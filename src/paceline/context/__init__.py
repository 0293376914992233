"""The interface between a strategy and the cluster that runs it: protocols, no logic.

A strategy is a set of role programs, such as `async def worker(self, ctx)`, written against `Context`. A context has
three parts: `ctx.model` (the trained model), `ctx.net` (communication) and `ctx.log` (records and metrics). A backend
implements them, either with real processes or in simulated time. Backends differ only in how they wait:

- With real processes an await blocks until its operation is done, and never suspends.
- In the simulator an await suspends. A queue of events in order of virtual time resumes it.

In every backend an operation starts when it is awaited or passed to `start`, not when it is created. Handles are the
only source of concurrency: `start` starts an operation or a whole coroutine, and `await handle` waits for its end. The
backend records all time spans; a strategy records none.
"""

from __future__ import annotations

from paceline.context.batch import Batch
from paceline.context.boundary import BoundaryValues
from paceline.context.handles import Handle
from paceline.context.log import Log
from paceline.context.model import BUCKET_BYTES, Model, ParameterPlace
from paceline.context.net import ANY, Combine, Message, Net, Window
from paceline.context.passes import UnitEvent
from paceline.context.rank import Context, Program, StateAt, Strategy
from paceline.context.segment import GroupReduction, ReduceKind, Segment
from paceline.context.shards import ShardedUnit, Shards
from paceline.context.stages import BackwardPart, Hooks, Stages

__all__ = [
    "ANY",
    "BUCKET_BYTES",
    "BackwardPart",
    "Batch",
    "BoundaryValues",
    "Combine",
    "Context",
    "GroupReduction",
    "Handle",
    "Hooks",
    "Log",
    "Message",
    "Model",
    "Net",
    "ParameterPlace",
    "Program",
    "ReduceKind",
    "Segment",
    "ShardedUnit",
    "Shards",
    "Stages",
    "StateAt",
    "Strategy",
    "UnitEvent",
    "Window",
]
