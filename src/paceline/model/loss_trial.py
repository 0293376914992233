"""Whether a loss is the mean over its samples: tried on the outputs of the first batch of a run.

Gradients of parts of a batch are weighted by their numbers of samples. This gives the gradient of the whole batch
only if the loss is a mean over samples. With `reduction="sum"`, class weights or `ignore_index` it is not.

The trial calls the loss three more times. The trial is therefore limited to losses without side effects: modules,
which are copied, and functions that store nothing outside themselves.
"""

from __future__ import annotations

import copy
import dis
import functools
import logging
import math
import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from paceline.system.seeding import rng_preserved
from paceline.task.calls import target_of
from paceline.task.task import Task

_log = logging.getLogger("paceline")

NOT_A_MEAN = (
    "the loss is not the mean over its samples. If workers or micro-batches share a batch, the "
    "weights will differ from those of one worker. reduction='sum', class weights and ignore_index have this effect. "
    "Compute the loss of each sample (reduction='none') and return their mean: divide by the number of "
    "samples, or of all targets with the ignored ones"
)

_TOLERANCE = 100.0
"""Rounding errors that count as equal, in units of the dtype's precision."""
_STORES = ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR", "STORE_SUBSCR", "DELETE_GLOBAL", "DELETE_ATTR")
_HARMLESS = (
    nn.Module,
    types.ModuleType,
    types.BuiltinFunctionType,
    Tensor,
    type,
    str,
    int,
    float,
    type(None),
)

_is_requested = False


def request(*, wanted: bool) -> None:
    """Request, or cancel, a trial of the loss with the next batch of this process."""
    global _is_requested
    _is_requested = wanted


def try_once(task: Task, outputs: Any, content: Any) -> None:
    """Try the loss with the model's outputs for a batch, if requested.

    Warn if the loss is not a mean over samples.
    """
    if not _is_requested:
        return
    target = target_of(content)
    if _count(outputs, target) == 1:
        return  # the next batch may have more samples
    request(wanted=False)
    try:
        with rng_preserved():
            found = stores_nothing(task.loss) and is_no_mean(task.loss, outputs, target)
    except Exception:  # it is no error if a loss cannot be tried
        return
    if found:
        _log.warning("%s", NOT_A_MEAN)


@torch.no_grad()
def is_no_mean(loss: Any, outputs: Any, target: Any) -> bool:
    """Compare the loss of a batch with the weighted mean of the losses of two uneven parts of it.

    Return False if the loss is a mean. Also return False if the comparison is impossible: outputs that cannot be split
    into samples, or a loss that is not finite.
    """
    samples = _count(outputs, target)
    if samples < 2:
        return False
    own = copy.deepcopy(loss) if isinstance(loss, nn.Module) else loss

    def loss_of(start: int, stop: int) -> float:
        return float(
            own(*(tree_map(lambda leaf: _rows(leaf, start, stop), each) for each in (outputs, target)))
        )

    cut = max(1, samples // 3)
    whole, first, rest = loss_of(0, samples), loss_of(0, cut), loss_of(cut, samples)
    mean = (cut * first + (samples - cut) * rest) / samples
    precision = max(
        (torch.finfo(each.dtype).eps for each in _tensors(outputs, target) if each.is_floating_point()),
        default=1e-6,
    )
    largest = max(abs(whole), abs(first), abs(rest))
    return math.isfinite(whole) and not abs(whole - mean) <= _TOLERANCE * precision * largest


def stores_nothing(loss: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Return whether a loss can be called again safely: it and the functions it names assign to local variables."""
    if isinstance(loss, _HARMLESS) or _is_of_torch(loss):
        return True
    if isinstance(loss, functools.partial):
        given = (loss.func, *loss.args, *loss.keywords.values())
        return all(stores_nothing(each, seen) for each in given)
    if not isinstance(loss, types.FunctionType) or loss in seen:
        return isinstance(loss, types.FunctionType)
    if any(each.opname in _STORES for each in dis.get_instructions(loss)):
        return False
    cells = [cell.cell_contents for cell in loss.__closure__ or ()]
    named = [loss.__globals__[name] for name in loss.__code__.co_names if name in loss.__globals__]
    return all(stores_nothing(each, seen | {loss}) for each in (*cells, *named))


def _is_of_torch(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "torch"


def _tensors(*given: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]


def _count(outputs: Any, target: Any) -> int:
    """Return the number of samples; 0 if these are not tensors with one row for each sample."""
    lengths = {len(each) if each.dim() else 0 for each in _tensors(outputs, target)}
    return lengths.pop() if len(lengths) == 1 else 0


def _rows(leaf: Any, start: int, stop: int) -> Any:
    """Return samples `start` to `stop`, copied: a loss may change its arguments in place."""
    return leaf[start:stop].clone() if isinstance(leaf, Tensor) else leaf
