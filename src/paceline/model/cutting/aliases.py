"""Values that share memory, and views that depend on strides.

A value that crosses a cut is a copy with its own memory. It no longer shares memory with its views on the other side,
and it is contiguous, whatever its strides were during tracing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from paceline.model.cutting.regions import changed_by


def allow_any_strides(graph_module: fx.GraphModule) -> None:
    """Replace each view by a reshape, also in nested graphs.

    torch.export drops calls of `contiguous` on values that are contiguous in the trace. The view after such a call
    fails if the strides differ in the run.
    """
    for module in graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if node.target is torch.ops.aten.view.default:
                    node.target = torch.ops.aten.reshape.default
            module.recompile()


def copy_changed_state(graph_module: fx.GraphModule, state: Iterable[fx.Node]) -> None:
    """Let operations use a copy of a buffer that the model changes in place, such as a counter of its calls.

    The next micro-batch changes the buffer again, before the backward pass of this one.
    """
    graph, kept = graph_module.graph, frozenset(state)
    roots = roots_of(graph.nodes)
    changing = [node for node in graph.nodes if any(roots[value] & kept for value in written_by(node))]
    for node in changing:
        is_copy = node.target is torch.ops.aten.copy_.default
        if is_copy and roots[node.args[1]] == roots[node.args[0]]:  # the buffer is assigned to itself
            graph.erase_node(node)
    for node in changing:
        if not roots[node] & kept:  # a block with its own graph returns other values
            continue
        if readers := [user for user in node.users if node not in written_by(user)]:
            with graph.inserting_after(node):
                copied = graph.call_function(torch.ops.aten.clone.default, (node,))
            copied.meta = dict(node.meta)
            for reader in readers:
                reader.replace_input_with(node, copied)


def roots_of(nodes: Iterable[fx.Node]) -> dict[fx.Node, frozenset[fx.Node]]:
    """Return, for each operation, the values that own the memory of its output.

    If it is not a view, it owns the memory.
    """
    roots: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in nodes:
        bases = [value for value in _aliased(node) if isinstance(value, fx.Node)]
        shared = [roots.get(base, frozenset([base])) for base in bases]
        roots[node] = frozenset().union(*shared) if shared else frozenset([node])
    return roots


def changes(nodes: Iterable[fx.Node], roots: Mapping[fx.Node, frozenset[fx.Node]]) -> dict[fx.Node, fx.Node]:
    """Return, for each value that owns memory, the last operation that changes this memory in place."""
    last: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        for value in written_by(node):
            last.update(dict.fromkeys(roots.get(value, (value,)), node))
    return last


def written_by(node: fx.Node) -> list[fx.Node]:
    """Return the inputs that an operation changes in place."""
    written = [each for each in changed_by(node) if isinstance(each, fx.Node)]
    return written + [each for each in _arguments(node, is_write=True) if isinstance(each, fx.Node)]


def _aliased(node: fx.Node) -> list[Any]:
    """Return the inputs that share memory with the output of an operation."""
    if getattr(node.target, "__name__", "") == "getitem":
        return [node.args[0]]
    if node.target is torch.ops.aten.reshape.default:  # may be a view, against its schema
        return [node.args[0]]
    return [*_arguments(node, is_write=False), *_arguments(node, is_write=True)]


def _arguments(node: fx.Node, *, is_write: bool) -> list[Any]:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
    infos = ((each.name, each.alias_info) for each in schema.arguments)
    return [given.get(name) for name, info in infos if info is not None and info.is_write == is_write]
