"""Error for a module that torch.export cannot trace. It names the layer and the cause."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from paceline.errors import ConfigurationError
from paceline.model.cutting.caches import without_caches
from paceline.model.cutting.parts import Arguments

ONE_SIZE = "it works for one size of batch only"

_BOUND = "must be one that can be cut, but {} cannot be traced"
_OTHER = "use zero:stage=3, which does not need a trace"

_NOT_FOR_ANY_BATCH = re.compile(r"is invalid for input of size .*\bs\d+")
"""Message for a view to a constant size of a value with a variable batch size."""

Trace = Callable[[nn.Module, Arguments], object]


def refusal(module: nn.Module, arguments: Arguments, error: Exception, trace: Trace) -> ConfigurationError:
    """Return the error for a module that `trace` cannot trace. It names the innermost layer that is the cause."""
    scripted = (name for name, each in module.named_modules() if isinstance(each, torch.jit.ScriptModule))
    if (hidden := next(scripted, None)) is not None:
        where, reason = f"its layer {hidden}" if hidden else "it", "TorchScript has no operations to trace"
        return ConfigurationError("model", _BOUND.format(where), reason, f"do not script it; or {_OTHER}")
    with without_caches(module):
        layer, cause = _blame(module, arguments, error, trace)
    reason = _reason(cause)
    bound = _BOUND.format(f"its layer {layer}" if layer else "its own forward")
    return ConfigurationError("model", bound, reason, _remedy(reason))


def _blame(module: nn.Module, arguments: Arguments, error: Exception, trace: Trace) -> tuple[str, Exception]:
    """Return the innermost layer that cannot be traced, and the cause. The name is empty if the module's own forward
    fails.
    """
    calls = _calls_of_children(module, arguments)
    for name, given in calls.items():
        child = module.get_submodule(name)
        try:
            trace(child, given)
        except Exception as cause:
            inner, why = _blame(child, given, cause, trace)
            return f"{name}.{inner}" if inner else f"{name} ({type(child).__name__})", why
    return "", error


def _calls_of_children(module: nn.Module, arguments: Arguments) -> dict[str, Arguments]:
    """Return the arguments of each child, including blocks of lists."""
    calls: dict[str, Arguments] = {}
    handles = []
    for name, child in _nearest(module):

        def note(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            calls.setdefault(name, Arguments(args, kwargs))

        handles.append(child.register_forward_pre_hook(note, with_kwargs=True))
    buffers = [buffer.clone() for buffer in module.buffers()]
    try:
        with torch.no_grad():
            module(*arguments.args, **arguments.kwargs)
    except Exception:
        pass  # the hooks recorded the calls before the failure
    finally:
        for handle in handles:
            handle.remove()
        for buffer, before in zip(module.buffers(), buffers, strict=True):
            buffer.data.copy_(before)
    return calls


def _nearest(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the children, and the blocks of lists and dictionaries of modules."""
    found = []
    for name, child in module.named_children():
        if isinstance(child, torch.jit.ScriptModule):  # has no hooks
            continue
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            found += [(f"{name}.{inner}", block) for inner, block in _nearest(child)]
        else:
            found.append((name, child))
    return found


def _reason(error: Exception) -> str:
    """Return the most informative line of torch's message."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    if any("specialized it to be a constant" in line or _NOT_FOR_ANY_BATCH.search(line) for line in lines):
        return ONE_SIZE
    return lines[0][:200] if lines else type(error).__name__


def _remedy(reason: str) -> str:
    if reason == ONE_SIZE:
        return "take sizes from the tensor, x.shape[0] and not len(x); or make the model an nn.Sequential"
    if "register a pytree" in reason:
        return f"return tensors, or tuples, dictionaries or dataclasses of tensors; or {_OTHER}"
    return f"write that layer without control flow that looks at the data, or make the model a Sequential; or {_OTHER}"
