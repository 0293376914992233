"""Pipeline orders as data: the actions of each rank of a pipeline, one after the other.

`ORDERS[name](rank, stages, microbatches, chunks)` returns the actions of one rank. `pipeline_order` returns those of
all ranks, and rejects numbers that an order does not support. `CONTINUOUS` has the orders without a flush, which have
no last action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from paceline.errors import ConfigurationError, UnknownNameError
from paceline.schedules.pipeline import gpipe, interleaved, one_f_one_b, zb_h1, zb_h2
from paceline.schedules.pipeline.actions import Action, Actions, Order, Phase
from paceline.schedules.pipeline.continuous import ContinuousOrder, ahead
from paceline.schedules.pipeline.pipedream import PIPEDREAM
from paceline.schedules.pipeline.pipedream_2bw import PIPEDREAM_2BW

__all__ = [
    "CONTINUOUS",
    "ORDERS",
    "Action",
    "Actions",
    "ContinuousOrder",
    "Order",
    "Phase",
    "ahead",
    "check_in_flight",
    "check_order",
    "pipeline_order",
]

ORDERS: Mapping[str, Callable[[int, int, int, int], Actions]] = MappingProxyType(
    {
        "gpipe": gpipe.actions,
        "1f1b": one_f_one_b.actions,
        "interleaved": interleaved.actions,
        "zb-h1": zb_h1.actions,
        "zb-h2": zb_h2.actions,
    }
)

CONTINUOUS: Mapping[str, ContinuousOrder] = MappingProxyType(
    {"pipedream": PIPEDREAM, "pipedream-2bw": PIPEDREAM_2BW}
)

_IN_CHUNKS = "interleaved"


def check_order(name: str, stages: int, microbatches: int, chunks: int) -> None:
    """Raise an error for numbers that an order does not support."""
    if name not in ORDERS and name not in CONTINUOUS:
        raise UnknownNameError("order", name, [*ORDERS, *CONTINUOUS])
    for argument, value in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if value < 1:
            raise ConfigurationError(argument, "must be at least 1", value)
    if name == _IN_CHUNKS and chunks < 2:
        bound = f"must be at least 2 if order is {name}"
        raise ConfigurationError("chunks", bound, chunks, "write chunks=2, or choose order=1f1b")
    if name != _IN_CHUNKS and chunks > 1:
        bound = f"must be 1 if order is {name}"
        raise ConfigurationError("chunks", bound, chunks, f"omit it, or choose order={_IN_CHUNKS}")
    if name in CONTINUOUS:
        check_in_flight(name, stages, microbatches)


def check_in_flight(name: str, stages: int, microbatches: int) -> None:
    """Raise an error for a number of micro-batches that an order without a flush does not support."""
    if CONTINUOUS[name].whole_batches:
        if microbatches != 1:
            remedy = "leave it out, or choose order=pipedream-2bw"
            raise ConfigurationError("microbatches", f"must be 1 if order is {name}", microbatches, remedy)
    elif microbatches < stages:
        bound = f"must be at least the {stages} stages if order is {name}"
        remedy = "use more micro-batches (of a larger batch), or fewer stages"
        raise ConfigurationError("microbatches", bound, microbatches, remedy)


def pipeline_order(name: str, stages: int, microbatches: int, chunks: int = 1) -> Order:
    """Return the actions of every rank."""
    check_order(name, stages, microbatches, chunks)
    return tuple(ORDERS[name](rank, stages, microbatches, chunks) for rank in range(stages))
