"""Cost of a layer, counted without computing it.

Cuts are chosen by `operations`: floating-point operations of matrix products, plus `MOVED` operations for each value of
the layer's output. Device time is computed from `flops` (matrix products only) and `moved_bytes` (bytes that all other
operations read and write).
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

MOVED = 20.0
"""Operations per value written to memory: about what a core computes in that time."""

_STAYS = ("_unsafe_view", "detach", "lift_fresh", "empty", "scalar_tensor")
"""Operations that access no memory, although torch does not class them as views."""
_PICKS = ("embedding", "index", "index_select", "gather")
"""Operations that read only as many table entries as they output."""


class Count(NamedTuple):
    """Cost of a computation, for all its samples."""

    operations: float
    flops: float
    moved_bytes: float

    def times(self, share: float) -> Count:
        """Return the cost of a share of the computation."""
        return Count(*(share * field for field in self))


NOTHING = Count(0.0, 0.0, 0.0)


def counted(work: Callable[[], Any]) -> tuple[Any, Count]:
    """Run a computation. Return its result and its cost."""
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
    """Return the flops of attention over all pairs, whether causal or not. This is the convention of the literature."""
    pairs = query.numel() // query.shape[-1] * key.shape[-2]
    return 2 * pairs * (query.shape[-1] + value.shape[-1])


def nbytes_of(value: Any) -> int:
    return sum(leaf.numel() * leaf.itemsize for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _moved_by(operation: Any, given: Any, made: Any) -> int:
    """Return the bytes that an operation reads and writes. Zero for matrix products (counted as flops) and views."""
    packet = getattr(operation, "overloadpacket", operation)
    name = str(getattr(packet, "__name__", ""))
    if packet in flop_registry or getattr(operation, "is_view", False) or name in _STAYS:
        return 0
    if not any(
        isinstance(leaf, Tensor) for leaf in tree_leaves(made)
    ):  # a query of metadata, such as a tensor's device
        return 0
    written = nbytes_of(made)
    return 2 * written if name in _PICKS else nbytes_of(given) + written


class _Moves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that operations read and write."""

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
    """Counts attention as one operation, as devices execute it.

    On the meta device, torch decomposes attention into many operations, with a matrix of all pairs. On a CPU it is one
    operation, but torch does not count its flops.
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
