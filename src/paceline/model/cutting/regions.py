"""Blocks under `torch.no_grad` or `torch.autocast`, which torch.export keeps as graphs within the graph.

Each block becomes one operation of the outer graph: a function that runs the inner graph in the block's context. A
model can be cut before and after such a block, not within it. All rotary embeddings of Hugging Face contain one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from paceline.errors import ConfigurationError

_CHANGED = "changed_arguments"


def fold_regions(graph_module: fx.GraphModule, layer_of: Callable[[fx.Node], str]) -> None:
    """Replace every nested graph by one function. Raise ConfigurationError for kinds other than the two above."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if isinstance(node.target, HigherOrderOperator):
            _fold(graph_module, node, layer_of)
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)


def changed_by(node: fx.Node) -> tuple[Any, ...]:
    """Return the arguments that a folded block changes in place."""
    return tuple(node.args[place] for place in getattr(node.target, _CHANGED, ()))


def _fold(graph_module: fx.GraphModule, node: fx.Node, layer_of: Callable[[fx.Node], str]) -> None:
    place = next((n for n, each in enumerate(node.args) if isinstance(each, fx.Node)), -1)
    settings: Any = node.args[:place]
    inner = node.args[place]
    kind = str(node.target)
    if kind == "wrap_with_set_grad_enabled":
        context = _grad_mode(*settings)
    elif kind == "wrap_with_autocast":
        context = _autocast(*settings)
    else:
        bound = f"must be one that can be cut, but layer {layer_of(node)} has a block that cannot be traced"
        remedy = (
            "use a strategy that does not trace the model (all-reduce, zero:stage=1), or leave that block out"
        )
        raise ConfigurationError("model", bound, kind, remedy)
    assert isinstance(inner, fx.Node)
    block = _function(kind.removeprefix("wrap_with_"), getattr(graph_module, str(inner.target)), context)
    with graph_module.graph.inserting_before(node):
        folded = graph_module.graph.call_function(block, node.args[place + 1 :])
    folded.meta = dict(node.meta)
    node.replace_all_uses_with(folded)
    graph_module.graph.erase_node(node)


def _function(
    name: str, inner: fx.GraphModule, context: Callable[[], AbstractContextManager[Any]]
) -> Callable[..., Any]:
    def block(*args: Any) -> Any:
        with context():
            return inner(*args)

    block.__name__ = block.__qualname__ = (
        name  # torch.fx generates code that refers to the function by this name
    )
    setattr(block, _CHANGED, _changed_arguments(inner))
    return block


def _changed_arguments(inner: fx.GraphModule) -> tuple[int, ...]:
    """Return the places of the arguments that an operation of the inner graph changes in place."""
    placeholders = [node for node in inner.graph.nodes if node.op == "placeholder"]
    return tuple(
        place
        for place, given in enumerate(placeholders)
        if any(getattr(getattr(user.target, "_schema", None), "is_mutable", False) for user in given.users)
    )


def _grad_mode(enabled: bool) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: torch.set_grad_enabled(enabled)


def _autocast(
    device_type: str, dtype: torch.dtype | None, enabled: bool, cache_enabled: bool | None
) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
