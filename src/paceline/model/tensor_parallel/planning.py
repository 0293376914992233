"""Choice of the layers to split: from the task's plan, or by following the columns of linear layers.

Without a plan, each group of linear layers with one input (queries, keys and values; or gate and values) is split by
columns, if the columns lead only to other linear layers. These are split by rows. If a model has no such group, each
linear layer is split by columns, and its output is gathered immediately. A head with very many classes is split too,
with the embedding that shares its matrix, if the loss can be computed on parts.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterator, Mapping
from contextlib import suppress

from torch import Tensor, fx, nn

from paceline.errors import ConfigurationError
from paceline.model.tensor_parallel.following import name_of
from paceline.model.tensor_parallel.found import Facts, Region, Role, Stuck, product_of
from paceline.model.tensor_parallel.region import follow
from paceline.model.tensor_parallel.spec import Split


def find(facts: Facts, roles: Mapping[str, Role], size: int) -> Region:
    """Split the model by the roles of its weights. Without roles, split it wherever possible."""
    return _checked(_by_plan(facts, roles) if roles else _by_itself(facts), size)


def wants_loss(facts: Facts, roles: Mapping[str, Role], region: Region) -> bool:
    """Return whether more can be split if the loss is part of the graph: outputs are split, or could be."""
    return region.ends_split or (not roles and bool(region.at_once or _heads(facts)))


def find_with_loss(facts: Facts, roles: Mapping[str, Role], size: int) -> Region:
    """Split a model that includes its loss. Raise Stuck if the loss cannot be computed on parts."""
    region = follow(facts, roles) if roles else _with_heads(facts)
    if region.ends_split or not region.steps:
        raise Stuck(facts.output, "no loss of split classes is found")
    if any(split is not None and split.units < size for split in region.parameters.values()):
        raise Stuck(facts.output, "there are fewer classes than ranks")
    return _checked(region, size)


def _checked(region: Region, size: int) -> Region:
    for name, split in region.parameters.items():
        if split is not None:
            _check(name, split, size)
    return region


def _by_plan(facts: Facts, roles: Mapping[str, Role]) -> Region:
    try:
        return follow(facts, roles)
    except Stuck as stuck:
        bound = f"must be possible, but {_where(stuck.node)} cannot be computed on parts"
        value = stuck.reason or f"no rule for {name_of(stuck.node)}"
        raise ConfigurationError("tensor_plan", bound, value, "leave that layer out of the plan") from stuck


def _where(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = next((place[0] for place in reversed(list(stack.values())) if place[0]), "")
    return f"{name_of(node)} of layer {path}" if path else name_of(node)


def _by_itself(facts: Facts) -> Region:
    region = _pairs(facts)
    if region.parameters:
        return region
    lone = _linear_weights(facts)
    if not lone:
        remedy = "choose another strategy, or a model with nn.Linear layers"
        raise ConfigurationError("model", "must have layers that can be split", "no nn.Linear", remedy)
    return follow(facts, dict.fromkeys(lone, _GATHERED))


def _pairs(facts: Facts) -> Region:
    region = Region()
    for names in _groups(facts):
        if region.parameters.keys() & names:
            continue

        def is_free(name: str, taken: set[str] = names) -> bool:
            is_left = name not in taken and name not in region.parameters and name not in facts.unsplit
            return is_left and len(facts.users(name)) == 1

        try:
            found = follow(facts, dict.fromkeys(names, "column"), free=is_free)
        except Stuck:
            continue
        if not found.steps and not region.parameters.keys() & found.parameters.keys():
            region.update(found)
    return region


def _with_heads(facts: Facts) -> Region:
    """Split pairs of layers, and heads with many classes. The head of a model without pairs is its last layer."""
    region = _pairs(facts)
    if not region.parameters:
        *others, last = _linear_weights(facts) or [""]
        if not last:
            raise Stuck(facts.output, "no layer can be split")
        return follow(facts, dict.fromkeys(others, _GATHERED) | {last: "column"})
    for name in _heads(facts):
        if name not in region.parameters:
            with suppress(Stuck):
                region.update(follow(facts, {name: "column"}, free=lambda _: False))
    return region


_GATHERED: Role = "gathered"
_MANY_CLASSES = 8192
"""Minimum number of classes of a head to split. With fewer, reducing the gradient costs more than splitting saves."""


def _heads(facts: Facts) -> list[str]:
    """Return the weights of linear layers with very many columns. An embedding may share them."""
    weights = {facts.weight(node): facts.values[node] for node in facts.nodes if product_of(node)}
    splittable = {name: made for name, made in weights.items() if name is not None}
    return [
        name
        for name, made in splittable.items()
        if made.shape[-1] >= _MANY_CLASSES and name not in facts.unsplit
    ]


def _groups(facts: Facts) -> Iterator[set[str]]:
    """Yield groups of weights of linear layers with the same input. Each weight is used once."""
    groups: dict[object, set[str]] = {}
    for node in facts.nodes:
        name, product = facts.weight(node), product_of(node)
        if name is None or product is None or name in facts.unsplit:
            continue
        if len(facts.users(name)) == 1:
            groups.setdefault(product.value, set()).add(name)
    yield from groups.values()


def _linear_weights(facts: Facts) -> list[str]:
    """Return the weights that only linear layers use."""
    names = dict.fromkeys(facts.weight(node) for node in facts.nodes if product_of(node))
    splittable = [name for name in names if name is not None and name not in facts.unsplit]
    return [name for name in splittable if all(product_of(user) for user in facts.users(name))]


def _check(name: str, split: Split, size: int) -> None:
    layer = name.rpartition(".")[0] or name
    if split.unit > 1 and split.units % size:
        divisors = ", ".join(str(n) for n in range(1, split.units + 1) if split.units % n == 0)
        bound = f"must divide the {split.units} heads of {layer}"
        raise ConfigurationError("size", bound, size, f"use one of {divisors}")
    if split.units < size and (split.blocks > 1 or (split.dim == 0 and not split.origins)):
        bound = f"must be at most the {split.units} columns of {layer}"
        raise ConfigurationError(
            "size", bound, size, "use fewer workers, or leave that layer out of the plan"
        )


# Keywords of a plan


def roles_of(plan: Mapping[str, str], module: nn.Module) -> dict[str, Role]:
    """Return the roles of weights, by name, from a plan with layer names or patterns."""
    layers = dict(module.named_modules())
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    roles: dict[str, Role] = {}
    for pattern, word in plan.items():
        found = [name for name in layers if name and _matches(name, pattern)]
        if not found:
            near = difflib.get_close_matches(pattern, [name for name in layers if name], n=3, cutoff=0.5)
            remedy = (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"its layers are {', '.join(list(layers)[1:13])}"
            )
            raise ConfigurationError("tensor_plan", "must name layers of the model", pattern, remedy)
        for layer in found:
            for weight, role in _roles(layer, layers[layer], word):
                roles[names[id(weight)]] = role
    return roles


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name matches. A star matches one component of a name, as in PyTorch's parallelize_module."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _roles(name: str, layer: nn.Module, word: str) -> list[tuple[Tensor, Role]]:
    if isinstance(layer, nn.MultiheadAttention) and word == "heads":
        into = [layer.in_proj_weight, layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
        columns: list[tuple[Tensor, Role]] = [(each, "column") for each in into if each is not None]
        return [*columns, (layer.out_proj.weight, "row")]
    if isinstance(layer, nn.Embedding) and word in ("vocabulary", "row"):
        return [(layer.weight, "vocabulary")]
    if isinstance(layer, nn.Linear) and word in ("column", "row", "vocabulary"):
        return [(layer.weight, "row" if word == "row" else "column")]
    fits = {nn.Linear: "column or row", nn.Embedding: "vocabulary", nn.MultiheadAttention: "heads"}
    words = next((each for kind, each in fits.items() if isinstance(layer, kind)), "")
    kind = type(layer).__name__
    bound = (
        f"must be {words} for {name}, which is of type {kind}" if words else f"must not name {name}, a {kind}"
    )
    remedy = "column and row are for nn.Linear, vocabulary for nn.Embedding, heads for nn.MultiheadAttention"
    raise ConfigurationError("tensor_plan", bound, word, remedy)
