"""Cost of a layer, counted without computing it.

Cuts are chosen by `operations`: floating-point operations of matrix products, plus `MOVED` operations for each value of
the layer's output. Device time is computed from `flops` (matrix products only), `moved_bytes` (bytes that all other
operations read and write) and `weight_bytes` (weights that matrix products read).
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
"""Operations per value written to memory: about as many as a core computes in the time of the write."""

_STAYS = ("_unsafe_view", "detach", "lift_fresh", "empty", "scalar_tensor")
"""Operations that access no memory, although torch does not class them as views."""
_PICKS = ("embedding", "index", "index_select", "gather")
"""Operations that read only the table entries that they output, such as an embedding."""
_WEIGHTS = {"mm": 1, "addmm": 2, "linear": 1, "convolution": 1}
"""Matrix products with weights, and the place of the weights among their arguments."""


class Count(NamedTuple):
    """Cost of a computation, for all its samples."""

    operations: float
    flops: float
    moved_bytes: float
    launches: int = 0
    """Number of operations that the host starts on a device. Independent of the number of samples."""
    weight_bytes: float = 0.0
    """Bytes of weights that matrix products read. Independent of the number of samples."""

    def times(self, share: float) -> Count:
        """Return the cost of a share of the computation: as many operations, each on a part of the values."""
        return Count(
            share * self.operations,
            share * self.flops,
            share * self.moved_bytes,
            self.launches,
            share * self.weight_bytes,
        )

    def per_sample(self, samples: int) -> Count:
        """Return the cost for one sample, given that of several."""
        return self.times(1 / samples)._replace(weight_bytes=self.weight_bytes)


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
    operations = flops + MOVED * values
    return made, Count(
        operations, flops + attention.uncounted, moves.nbytes, moves.launches, moves.weight_bytes
    )


def attention_flops(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Return the flops of attention over all pairs of tokens, also for causal attention, as is usual in the
    literature."""
    pairs = query.numel() // query.shape[-1] * key.shape[-2]
    return 2 * pairs * (query.shape[-1] + value.shape[-1])


def nbytes_of(value: Any) -> int:
    return sum(leaf.numel() * leaf.itemsize for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _moved_by(operation: Any, given: Any, made: Any) -> int:
    """Return the bytes that an operation reads and writes. Zero for matrix products, which are counted as flops."""
    packet = getattr(operation, "overloadpacket", operation)
    if packet in flop_registry:
        return 0
    written = nbytes_of(made)
    return 2 * written if _name(operation) in _PICKS else nbytes_of(given) + written


def _weight_bytes(operation: Any, given: Any) -> int:
    """Return the bytes of the weights of a matrix product. 0 for other operations, and for products of two values."""
    place = _WEIGHTS.get(_name(operation))
    return 0 if place is None else nbytes_of(given[place])


def _is_launched(operation: Any, made: Any) -> bool:
    """Return whether a device computes an operation. Views and queries of metadata are not computed."""
    if getattr(operation, "is_view", False) or _name(operation) in _STAYS:
        return False
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(made))


def _name(operation: Any) -> str:
    packet = getattr(operation, "overloadpacket", operation)
    return str(getattr(packet, "__name__", ""))


class _Moves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nbytes = 0.0
        self.weight_bytes = 0.0
        self.launches = 0
        self.is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not self.is_paused and _is_launched(func, made):
            self.launches += 1
            self.nbytes += _moved_by(func, (args, kwargs), made)
            self.weight_bytes += _weight_bytes(func, args)
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
        self._moves.launches += 1
        if self._counter.get_total_flops() == before:
            self.uncounted += attention_flops(*args, **(kwargs or {}))
        return made
