"""Support for code that torch.export cannot trace without help: dataclasses, masks that torch's transformers read, and
BatchNorm with a cumulative average."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, TypeGuard

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree


@contextlib.contextmanager
def adapted(module: nn.Module, inputs: Any) -> Iterator[None]:
    """Trace a module whose inputs and outputs may contain dataclasses. Dataclasses stay registered with torch."""
    _register(inputs)
    hook = module.register_forward_hook(lambda _, __, outputs: _register(outputs))
    detect, transformer._detect_is_causal_mask = transformer._detect_is_causal_mask, _is_causal
    norms = [each for each in module.modules() if _averages_all_batches(each)]
    for norm in norms:
        vars(norm)["forward"] = functools.partial(_normalized, norm)
    try:
        yield
    finally:
        hook.remove()
        transformer._detect_is_causal_mask = detect
        for norm in norms:
            del vars(norm)["forward"]


def _averages_all_batches(module: nn.Module) -> TypeGuard[_BatchNorm]:
    """Return whether a module is BatchNorm whose running statistics are the mean over all batches."""
    if not isinstance(module, _BatchNorm) or "forward" in vars(module):
        return False
    is_torchs = type(module).forward is _BatchNorm.forward
    return is_torchs and module.momentum is None and module.track_running_stats and module.training


def _normalized(norm: _BatchNorm, x: Tensor) -> Tensor:
    """Normalise by the statistics of the batch.

    Torch's layer converts its count of batches into a number, which a trace does not have. This function divides by
    the tensor.
    """
    norm._check_input_dim(x)  # type: ignore[no-untyped-call]
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    others = [dim for dim in range(x.dim()) if dim != 1]
    values = x.detach()
    for running, now in ((norm.running_mean, values.mean(others)), (norm.running_var, values.var(others))):
        assert running is not None
        running.add_((now - running) / norm.num_batches_tracked)
    return functional.batch_norm(x, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)


def _is_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Return whether the caller declared the mask as causal.

    This replaces torch's function, which compares the values of the mask. Attention with the mask gives the same
    result.
    """
    return is_causal is True


def _register(value: Any) -> None:
    """Register the dataclasses in a value, so that torch.export finds the tensors in them."""
    kind = type(value)
    if dataclasses.is_dataclass(kind) and kind not in pytree.SUPPORTED_NODES:
        pytree.register_dataclass(kind)
    node = pytree.SUPPORTED_NODES.get(kind)
    for child in () if node is None else node.flatten_fn(value)[0]:
        _register(child)
