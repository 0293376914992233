"""Tracing a module with torch.export."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import TreeSpec, tree_map

from paceline.errors import ConfigurationError
from paceline.model.cutting.adapting import adapted
from paceline.model.cutting.aliases import allow_any_strides, copy_changed_state
from paceline.model.cutting.blame import refusal
from paceline.model.cutting.caches import without_caches
from paceline.model.cutting.linear import as_linear
from paceline.model.cutting.own_gradients import refused_own_gradients
from paceline.model.cutting.parts import Arguments
from paceline.model.cutting.progress import report_progress
from paceline.model.cutting.regions import fold_regions

_CHECKS = ("_assert", "sym_constrain", "_guards_fn")
"""Operations that only check sizes."""


class Exported:
    """A traced module: its operations in forward order, and the source of each value."""

    def __init__(self, program: ExportedProgram, *, one_size: bool = False) -> None:
        assert program.call_spec.out_spec is not None
        self.out_spec: TreeSpec = program.call_spec.out_spec
        self.constants = program.constants
        self.state: dict[fx.Node, str] = {}
        """Parameters, buffers and constants, with their names in the module."""
        self.inputs: dict[fx.Node, int] = {}
        """Inputs of the model, with their positions among the flattened arguments."""
        graph, parameters = program.graph_module.graph, set[fx.Node]()
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                self.inputs[node] = len(self.inputs)
            else:
                assert spec.target is not None
                self.state[node] = spec.target
                if spec.kind is InputKind.PARAMETER:
                    parameters.add(node)
        self.batch_symbols = _batch_symbols(self.inputs)
        """Symbols of the batch size. Empty if it was traced as a constant."""
        self.fixed_sizes = _fixed_sizes(self.inputs, 0 if one_size else 1)
        """Sizes that were traced as constants, by input and dimension. Dimension 0, the batch, is left out unless all
        batches have one size."""
        as_linear(graph, parameters)
        allow_any_strides(program.graph_module)
        fold_regions(program.graph_module, self.layer_of)
        copy_changed_state(program.graph_module, self.state)
        self._look_at(program.graph_module)

    def check_sizes(self, given: Sequence[Any]) -> None:
        """Raise ConfigurationError if a batch has other sizes than the model was traced for."""
        for (place, dim), size in self.fixed_sizes.items():
            if given[place].shape[dim] != size:
                bound = f"must give the model inputs of size {size} in dimension {dim}, as in its trace"
                remedy = "pad or resize them, or use a strategy that keeps the model whole"
                raise ConfigurationError("data", bound, tuple(given[place].shape), remedy)

    def _look_at(self, graph_module: fx.GraphModule) -> None:
        self.graph_module = graph_module
        graph = graph_module.graph
        self.placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self.output: fx.Node = graph.output_node()
        self.sizes = _sizes(graph, set(self.inputs))
        """Numbers that depend only on the shapes of the inputs."""
        self.nodes = [node for node in graph.nodes if computes(node) and node not in self.sizes]

    def rebuilt(self, graph: fx.Graph, copies: Mapping[fx.Node, fx.Node]) -> Exported:
        """Return the same module with another graph. `copies` maps operations of this graph to the other graph."""
        other = copy.copy(self)
        other.state = {copies[node]: name for node, name in self.state.items()}
        other.inputs = {copies[node]: place for node, place in self.inputs.items()}
        other._look_at(fx.GraphModule(self.graph_module, graph))
        return other

    def rename(self, module: nn.Module, prefix: str) -> None:
        """Convert all state of the module into constants with the current values. Prefix their names."""
        values = {name: self.fetcher(module, node)() for node, name in self.state.items()}
        self.constants = {prefix + name: value for name, value in values.items()}
        self.state = {node: prefix + name for node, name in self.state.items()}

    def constant(self, node: fx.Node) -> Any:
        return self.constants[self.state[node]]

    def followed_by(self, other: Exported, graph: fx.Graph, copies: Mapping[fx.Node, fx.Node]) -> Exported:
        """Return this graph followed by `other`, which has constants only. `copies` maps the operations of both to
        `graph`.
        """
        joint = copy.copy(self)
        joint.out_spec = other.out_spec
        joint.constants = {**self.constants, **other.constants}
        joint.state = {copies[node]: name for node, name in (self.state | other.state).items()}
        joint.inputs = {copies[node]: place for node, place in (self.inputs | other.inputs).items()}
        joint._look_at(fx.GraphModule(self.graph_module, graph))
        return joint

    def joined(
        self,
        graph: fx.Graph,
        state: dict[fx.Node, str],
        inputs: dict[fx.Node, int],
        constants: dict[str, Any],
        batch_symbols: frozenset[Any],
    ) -> Exported:
        """Return a larger graph with the outputs of this one."""
        other = copy.copy(self)
        other.batch_symbols = batch_symbols
        other.state, other.inputs, other.constants = state, inputs, constants
        other.fixed_sizes = {}  # every batch has the shapes of the first: see `layer_by_layer`
        other._look_at(fx.GraphModule(nn.Module(), graph))
        return other

    def fetcher(self, module: nn.Module, node: fx.Node) -> Callable[[], Any]:
        """Return a function that fetches a parameter, buffer or constant at each call. A module may replace its
        buffers.
        """
        name = self.state[node]
        path, _, attribute = name.rpartition(".")
        try:
            owner = module.get_submodule(path)
        except AttributeError:
            return lambda: self.constants[name]
        if name in self.constants and attribute not in owner._buffers:
            return lambda: self.constants[name]
        return lambda: getattr(owner, attribute)

    def layer_of(self, node: fx.Node) -> str:
        """Return the innermost layer of an operation; the name of the operation if it is in no layer."""
        stack = node.meta.get("nn_module_stack") or {}
        path = next((place[0] for place in reversed(list(stack.values())) if place[0]), "")
        return path or str(getattr(node.target, "__name__", node.name)).partition(".")[0]


def export(
    module: nn.Module, arguments: Arguments, samples: int, *, fixed: bool = False, one_size: bool = False
) -> Exported:
    """Trace a module for batches of any size. With `fixed`, all other sizes are constants; with `one_size`, all sizes.

    Without `fixed`, other sizes may vary too, unless the model depends on them: for example, if it has a view to a
    size computed from the size of an image. Batches of other sizes are then refused (`Exported.check_sizes`).
    """
    try:
        with without_caches(module):
            if one_size:
                return Exported(_export(module, arguments, 1, fixed=True), one_size=True)
            if fixed:
                return Exported(_export(module, arguments, samples, fixed=True))
            return _exported(module, arguments, samples)
    except ConfigurationError:
        raise
    except Exception as error:

        def trace(child: nn.Module, given: Arguments) -> ExportedProgram:
            return _export(child, given, samples, fixed=True)

        raise refusal(module, arguments, error, trace) from error


def _exported(module: nn.Module, arguments: Arguments, samples: int) -> Exported:
    try:
        return Exported(_export(module, arguments, samples))
    except ConfigurationError:
        raise
    except Exception:
        return Exported(_export(module, arguments, samples, fixed=True))


def _export(module: nn.Module, arguments: Arguments, samples: int, *, fixed: bool = False) -> ExportedProgram:
    """Run torch.export. With `fixed`, all sizes except the batch size are constants."""

    def dims(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        free = samples > 1  # torch.export treats a size of 1 as a constant
        return {
            axis: Dim.DYNAMIC if axis == 0 and size == samples and free else other
            for axis, size in enumerate(leaf.shape)
        }

    other = Dim.STATIC if fixed else Dim.AUTO
    shapes = tree_map(dims, tuple(arguments.args)), tree_map(dims, arguments.kwargs)
    return program_of(module, arguments.args, arguments.kwargs, _by_name(module, *shapes))


def _by_name(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dynamic shapes of each argument by its name in the signature of forward, as torch.export wants."""
    parameters = inspect.signature(module.forward).parameters
    named = dict(zip(parameters, args, strict=False))
    rest = next((name for name, each in parameters.items() if each.kind is each.VAR_KEYWORD), None)
    others = {name: shape for name, shape in kwargs.items() if name not in parameters}
    named |= {name: shape for name, shape in kwargs.items() if name in parameters}
    return named | ({rest: others} if rest is not None and others else others)


def program_of(module: nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any) -> ExportedProgram:
    """Run torch.export. Its errors are raised but not printed."""
    from torch._dynamo import config

    # Torch caches shapes without limit. The cache is useless for the next model, so it is cleared.
    settings = config.patch(fake_tensor_cache_enabled=False)
    with (
        report_progress(module),
        _silence(),
        adapted(module, (args, kwargs)),
        settings,
        refused_own_gradients(module),
    ):
        return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)


_LOGS = ("torch.fx.experimental.symbolic_shapes", "torch._export.non_strict_utils")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppress output of torch.export: it prints the graph of a module that it cannot trace, and warns."""
    logs = [logging.getLogger(name) for name in _LOGS]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, was_disabled in zip(logs, before, strict=True):
            log.disabled = was_disabled


def _fixed_sizes(inputs: Mapping[fx.Node, int], first: int) -> dict[tuple[int, int], int]:
    """Return the constant sizes of the inputs, from dimension `first`."""
    tensors = {place: node.meta.get("val") for node, place in inputs.items()}
    return {
        (place, dim): size
        for place, value in tensors.items()
        if isinstance(value, Tensor)
        for dim, size in enumerate(value.shape)
        if dim >= first and isinstance(size, int)
    }


def _batch_symbols(inputs: Iterable[fx.Node]) -> frozenset[Any]:
    tensors = (node.meta.get("val") for node in inputs)
    first = next((each for each in tensors if isinstance(each, Tensor) and each.dim()), None)
    return frozenset() if first is None else symbols_in(first.shape[0])


def symbols_in(size: Any) -> frozenset[Any]:
    """Return the symbols in a size of a traced value; empty if it is a number."""
    return frozenset(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else frozenset()


def _sizes(graph: fx.Graph, inputs: set[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in graph.nodes:
        follows = node.all_input_nodes and all(
            each in inputs or each in found for each in node.all_input_nodes
        )
        if node.op == "call_function" and follows and not _is_tensor(node):
            found.add(node)
    return found


def _is_tensor(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def computes(node: fx.Node) -> bool:
    """Return whether the result of an operation is used. Checks have no such result."""
    if node.op in ("placeholder", "output"):
        return False
    return not (not node.users and any(word in str(node.target) for word in _CHECKS))
