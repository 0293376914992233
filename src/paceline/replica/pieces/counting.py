"""Operations of a layer, counted without computing it.

Two counts serve two ends. Cuts are chosen by `operations`: a floating-point operation of a matrix product is one, and
moving a value that the layer gives is worth as many as a core does meanwhile. Devices are charged by `flops`, of matrix
products alone, and `moved_bytes`: what each other operation within the layer reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

__all__ = ["MOVED", "NOTHING", "Count", "attention_flops", "counted", "nbytes_of"]

MOVED = 20.0
"""Operations that a value's way to memory is worth: about what a core multiplies in that time."""

_STAYS = ("_unsafe_view", "detach", "lift_fresh", "empty", "scalar_tensor")
"""Operations that touch no memory, though torch does not call them views."""
_PICKS = ("embedding", "index", "index_select", "gather")
"""Operations that read as much of a table as they give."""


class Count(NamedTuple):
    """What a piece of work costs, of all its samples."""

    operations: float
    flops: float
    moved_bytes: float

    def times(self, share: float) -> Count:
        """Of a part of the work."""
        return Count(*(share * field for field in self))


NOTHING = Count(0.0, 0.0, 0.0)


def counted(work: Callable[[], Any]) -> tuple[Any, Count]:
    """What a piece of work gives, and what it costs."""
    with (
        FlopCounterMode(display=False) as counter,
        _Moves() as moves,
        _Attention(moves, counter) as attention,
    ):
        made = work()
    flops = float(counter.get_total_flops())
    values = sum(leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor))
    return made, Count(flops + MOVED * values, flops + attention.uncounted, moves.nbytes)


def attention_flops(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Of all pairs, whether or not attention is causal: so they are counted in the literature."""
    pairs = query.numel() // query.shape[-1] * key.shape[-2]
    return 2 * pairs * (query.shape[-1] + value.shape[-1])


def nbytes_of(value: Any) -> int:
    return sum(leaf.numel() * leaf.itemsize for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _moved_by(operation: Any, given: Any, made: Any) -> int:
    """The bytes that an operation reads and writes. A matrix product's count by its operations, and views move none."""
    packet = getattr(operation, "overloadpacket", operation)
    name = str(getattr(packet, "__name__", ""))
    if packet in flop_registry or getattr(operation, "is_view", False) or name in _STAYS:
        return 0
    if not any(
        isinstance(leaf, Tensor) for leaf in tree_leaves(made)
    ):  # a question, such as where a tensor lies
        return 0
    written = nbytes_of(made)
    return 2 * written if name in _PICKS else nbytes_of(given) + written


class _Moves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what operations move."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nbytes = 0.0
        self.is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not self.is_paused:
            self.nbytes += _moved_by(func, (args, kwargs), made)
        return made


class _Attention(TorchFunctionMode):
    """On a device attention is one operation. Without data torch does it in many, with a matrix of all pairs.

    With data on a processor it is one as well, but torch does not count it.
    """

    def __init__(self, moves: _Moves, counter: FlopCounterMode) -> None:
        super().__init__()
        self._moves = moves
        self._counter = counter
        self.uncounted = 0.0

    def __enter__(self) -> _Attention:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self._moves.is_paused, before = True, self._counter.get_total_flops()
        try:
            made = func(*args, **(kwargs or {}))
        finally:
            self._moves.is_paused = False
        self._moves.nbytes += nbytes_of((args, kwargs)) + nbytes_of(made)
        if self._counter.get_total_flops() == before:
            self.uncounted += attention_flops(*args, **(kwargs or {}))
        return made
