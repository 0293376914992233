"""A module as torch.export sees it, and why it may refuse one."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import TreeSpec, tree_map

from paceline.errors import ConfigurationError
from paceline.replica.pieces.parts import Arguments

__all__ = ["Exported", "computes", "export", "program_of", "symbols_in"]

_CHECKS = ("_assert", "sym_constrain", "_guards_fn")
"""Operations that check sizes and give nothing."""


class Exported:
    """A traced module: its operations in forward order, and where each value comes from."""

    def __init__(self, program: ExportedProgram) -> None:
        assert program.call_spec.out_spec is not None
        self.out_spec: TreeSpec = program.call_spec.out_spec
        self.constants = program.constants
        self.state: dict[fx.Node, str] = {}
        """Parameters, buffers and constants, by the names that the module has for them."""
        self.inputs: dict[fx.Node, int] = {}
        """What the model is called with, by its place among all leaves of it."""
        graph = program.graph_module.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                self.inputs[node] = len(self.inputs)
            else:
                assert spec.target is not None
                self.state[node] = spec.target
        self.batch_symbols = _batch_symbols(self.inputs)
        """What the size of a batch is written as; nothing if it was traced as a number."""
        self._look_at(program.graph_module)

    def _look_at(self, graph_module: fx.GraphModule) -> None:
        self.graph_module = graph_module
        graph = graph_module.graph
        self.placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self.output: fx.Node = graph.output_node()
        self.sizes = _sizes(graph, set(self.inputs))
        """Numbers that follow from the shapes of the inputs alone."""
        self.nodes = [node for node in graph.nodes if computes(node) and node not in self.sizes]

    def rebuilt(self, graph: fx.Graph, copies: Mapping[fx.Node, fx.Node]) -> Exported:
        """The same with another graph, in which operations stand for those of this one."""
        other = copy.copy(self)
        other.state = {copies[node]: name for node, name in self.state.items()}
        other.inputs = {copies[node]: place for node, place in self.inputs.items()}
        other._look_at(fx.GraphModule(self.graph_module, graph))
        return other

    def rename(self, module: nn.Module, prefix: str) -> None:
        """Take all state of the module as it is now for constants, by names with this prefix."""
        values = {name: self.fetcher(module, node)() for node, name in self.state.items()}
        self.constants = {prefix + name: value for name, value in values.items()}
        self.state = {node: prefix + name for node, name in self.state.items()}

    def constant(self, node: fx.Node) -> Any:
        return self.constants[self.state[node]]

    def followed_by(self, other: Exported, graph: fx.Graph, copies: Mapping[fx.Node, fx.Node]) -> Exported:
        """This and then another that has constants only, with a graph in which operations stand for those of both."""
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
        """A larger graph with the outputs of this one."""
        other = copy.copy(self)
        other.batch_symbols = batch_symbols
        other.state, other.inputs, other.constants = state, inputs, constants
        other._look_at(fx.GraphModule(nn.Module(), graph))
        return other

    def fetcher(self, module: nn.Module, node: fx.Node) -> Callable[[], Any]:
        """Gives a parameter, buffer or constant as it is when asked for: a module may replace its buffers."""
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
        """The innermost layer that an operation is of, or the operation itself where it is of no layer's own."""
        stack = node.meta.get("nn_module_stack") or {}
        path = next((place[0] for place in reversed(list(stack.values())) if place[0]), "")
        return path or str(getattr(node.target, "__name__", node.name)).partition(".")[0]

    @staticmethod
    def mutates(user: fx.Node, node: fx.Node) -> bool:
        """Whether an operation changes a value in place."""
        schema = getattr(user.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            return False
        given = dict(zip((argument.name for argument in schema.arguments), user.args, strict=False))
        given |= user.kwargs
        written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        return any(given.get(name) is node for name in written)


def export(module: nn.Module, arguments: Arguments, samples: int, *, fixed: bool = False) -> Exported:
    """Trace a module with a batch of any size. `fixed`: all other sizes stay as they are."""
    try:
        return Exported(_export(module, arguments, samples, fixed=fixed))
    except ConfigurationError:
        raise
    except Exception as error:
        layer, cause = _blame(module, arguments, samples, error)
        where = f"its layer {layer}" if layer else "its own forward"
        bound = f"must be one that can be cut, but {where} cannot be traced"
        reason = _reason(cause)
        raise ConfigurationError("model", bound, reason, _remedy(reason)) from error


def _export(module: nn.Module, arguments: Arguments, samples: int, *, fixed: bool = False) -> ExportedProgram:
    def dims(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        free = samples > 1  # a size of 1 is traced as it is
        return {
            axis: Dim.DYNAMIC if axis == 0 and size == samples and free else other
            for axis, size in enumerate(leaf.shape)
        }

    other = Dim.STATIC if fixed else Dim.AUTO
    shapes = tree_map(dims, tuple(arguments.args)), tree_map(dims, arguments.kwargs)
    names = _argument_names(module, len(arguments.args))
    dynamic = {**dict(zip(names, shapes[0], strict=True)), **shapes[1]}
    return program_of(module, arguments.args, arguments.kwargs, dynamic)


def program_of(module: nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any) -> ExportedProgram:
    """What torch.export makes of it. Its errors are raised, and not written to the terminal as well."""
    from torch._dynamo import config

    # Torch keeps what it remembers of shapes for ever, and it is of no use for the next model.
    with _silence(), config.patch(fake_tensor_cache_enabled=False):
        return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Torch prints the graph of what it cannot trace, and warns besides."""
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    was_disabled, log.disabled = log.disabled, True
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = was_disabled


def _argument_names(module: nn.Module, count: int) -> list[str]:
    import inspect

    return list(inspect.signature(module.forward).parameters)[:count]


def _batch_symbols(inputs: Iterable[fx.Node]) -> frozenset[Any]:
    tensors = (node.meta.get("val") for node in inputs)
    first = next((each for each in tensors if isinstance(each, Tensor) and each.dim()), None)
    return frozenset() if first is None else symbols_in(first.shape[0])


def symbols_in(size: Any) -> frozenset[Any]:
    """What a size of a traced value is written with; nothing if it is a number."""
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
    """Whether an operation gives something that is used, and not a mere check."""
    if node.op in ("placeholder", "output"):
        return False
    return not (not node.users and any(word in str(node.target) for word in _CHECKS))


def _blame(module: nn.Module, arguments: Arguments, samples: int, error: Exception) -> tuple[str, Exception]:
    """The innermost layer that cannot be traced by itself, and why; no name if it is the module's own forward."""
    calls = _calls_of_children(module, arguments)
    for name, given in calls.items():
        child = module.get_submodule(name)
        try:
            _export(child, given, samples)
        except Exception as cause:
            inner, why = _blame(child, given, samples, cause)
            return f"{name}.{inner}" if inner else f"{name} ({type(child).__name__})", why
    return "", error


def _calls_of_children(module: nn.Module, arguments: Arguments) -> dict[str, Arguments]:
    """What each child is called with, blocks of lists included."""
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
        pass  # those that came before the failure were noted
    finally:
        for handle in handles:
            handle.remove()
        for buffer, before in zip(module.buffers(), buffers, strict=True):
            buffer.data.copy_(before)
    return calls


def _nearest(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children, and the blocks of those that only hold blocks."""
    found = []
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            found += [(f"{name}.{inner}", block) for inner, block in _nearest(child)]
        else:
            found.append((name, child))
    return found


def _reason(error: Exception) -> str:
    """The line of torch's message that tells most."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    if any("specialized it to be a constant" in line for line in lines):
        return "it works for one size of batch only"
    return lines[0][:200] if lines else type(error).__name__


def _remedy(reason: str) -> str:
    if "one size of batch" in reason:
        return "take sizes from the tensor, x.shape[0] and not len(x); or make the model an nn.Sequential"
    return "write that layer without control flow that looks at the data, or make the model an nn.Sequential"
