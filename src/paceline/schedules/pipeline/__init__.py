"""Pipeline orders: what each rank of a pipeline does, one action after the other, as data.

`ORDERS[name](rank, stages, microbatches, chunks)` is one rank's list; `pipeline_order` gives those of all ranks, and
refuses numbers that an order cannot do with. `validate` proves an order right, `activations` counts what it keeps in
memory, `time_order` tells when each action runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from paceline.errors import ConfigurationError, UnknownNameError
from paceline.schedules.pipeline import gpipe, interleaved, one_f_one_b, zb_h1, zb_h2
from paceline.schedules.pipeline.actions import Action, Actions, Order, Phase
from paceline.schedules.pipeline.activations import activations
from paceline.schedules.pipeline.timing import OrderTiming, time_order
from paceline.schedules.pipeline.validate import OrderError, validate

__all__ = [
    "ORDERS",
    "Action",
    "Actions",
    "Order",
    "OrderError",
    "OrderTiming",
    "Phase",
    "activations",
    "check_order",
    "pipeline_order",
    "time_order",
    "validate",
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

_IN_CHUNKS = "interleaved"


def check_order(name: str, stages: int, microbatches: int, chunks: int) -> None:
    """Refuse numbers that an order cannot do with."""
    if name not in ORDERS:
        raise UnknownNameError("order", name, ORDERS)
    for argument, value in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if value < 1:
            raise ConfigurationError(argument, "must be at least 1", value)
    if name == _IN_CHUNKS and chunks < 2:
        bound = f"must be at least 2 where order is {name}"
        raise ConfigurationError("chunks", bound, chunks, "write chunks=2, or choose order=1f1b")
    if name != _IN_CHUNKS and chunks > 1:
        bound = f"must be 1 where order is {name}"
        raise ConfigurationError("chunks", bound, chunks, f"leave it out, or choose order={_IN_CHUNKS}")


def pipeline_order(name: str, stages: int, microbatches: int, chunks: int = 1) -> Order:
    """The actions of every rank."""
    check_order(name, stages, microbatches, chunks)
    return tuple(ORDERS[name](rank, stages, microbatches, chunks) for rank in range(stages))
