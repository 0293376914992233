"""Cutting a model into segments: its layers are found by trying it, and cuts are chosen or given."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from paceline.context import Batch, Segment
from paceline.errors import ConfigurationError
from paceline.replica.calls import arguments_of
from paceline.replica.optimizers import all_work_elementwise
from paceline.replica.pieces.chain import Chain, is_chain
from paceline.replica.pieces.choosing import choose
from paceline.replica.pieces.cut import Cut
from paceline.replica.pieces.naming import Names
from paceline.replica.pieces.parts import Arguments, Part, Parts
from paceline.replica.pieces.tensor.spec import Shares
from paceline.replica.samples import Samples
from paceline.task import Task

__all__ = ["Layers", "cut_model", "few_samples", "samples_in"]

_TRIED = (5, 7, 3, 11, 13, 2)
"""How many samples a model is tried with."""


class Layers:
    """A model's parts, found by trying it with some samples. It can be cut in different ways then."""

    def __init__(self, module: nn.Module, model: Parts) -> None:
        self.model = model
        shares: Shares | None = getattr(model, "shares", None)
        self._shares = shares
        self._sizes = {
            name: (shares.shape(name, each.shape, 0) if shares else each.shape).numel()
            for name, each in module.named_parameters()
        }
        used = {name for part in model.parts for name in part.parameters}
        self._unused = tuple(name for name in self._sizes if name not in used)
        self._names = Names([part.name for part in model.parts])
        self._made: dict[tuple[int, tuple[str, ...], int], Cut] = {}

    @classmethod
    def of(
        cls, task: Task, module: nn.Module, batch: Any, *, tensor: int = 1, sequence: bool = False
    ) -> Layers:
        """`batch` is a small one, as the task's data has them: its shapes count, not its values.

        With `tensor`, matrices are split among so many ranks: the parts are those of one of them. With `sequence`, so
        are sequences between them.
        """
        if task.step is not None:
            remedy = "give the task a loss, or choose a strategy that keeps the model whole"
            raise ConfigurationError("step", "must not be given where the model is cut", task.step, remedy)
        arguments = Arguments(*arguments_of(task, module, batch))
        if tensor == 1:
            return cls(module, _parts(module, arguments, samples_in(arguments)))
        if not all_work_elementwise(task, module):
            bound = "must work element by element where matrices are split"
            value = type(task.build_optimizer(module)).__name__
            raise ConfigurationError(
                "optimizer", bound, value, "choose SGD, Adam or the like, or another strategy"
            )
        from paceline.replica.pieces.tensor.behind import with_loss
        from paceline.replica.pieces.tensor.planning import roles_of
        from paceline.replica.pieces.tensor.sharded import Sharded

        roles = roles_of(task.tensor_plan or {}, module)
        traced = _parts(module, arguments, samples_in(arguments), trace=True)
        return cls(
            module,
            Sharded(traced, roles, tensor, lambda model: with_loss(task, model, batch), sequence=sequence),
        )

    @classmethod
    def untried(cls, module: nn.Module) -> Layers:
        """Of a Sequential that stands in for a model whose costs do not matter: its layers count alike."""
        return cls(module, Chain(module))

    @property
    def most(self) -> int:
        """The most segments that it can be cut into."""
        return 1 + sum(not part.obstacle for part in self.model.parts[:-1])

    def cut(self, stages: int, cuts: Sequence[str] = (), *, finer: int = 1) -> Cut:
        """Into so many stages of about equal seconds, or before the layers that `cuts` names.

        Each stage is cut into `finer` segments, or as many as it has layers.
        """
        key = stages, tuple(cuts), finer
        if key not in self._made:  # a thousand simulated ranks ask for the same
            self._made[key] = self._cut(*key)
        return self._made[key]

    def _cut(self, stages: int, cuts: Sequence[str], finer: int) -> Cut:
        parts = self.model.parts
        chosen = self._given(stages, cuts) if cuts else choose(parts, stages)
        if stages < 1 or chosen is None:
            remedy = "use fewer stages (or chunks), or a model of more layers"
            bound = f"must make 1 to {self.most} segments of this model"
            raise ConfigurationError("stages x chunks", bound, stages, remedy)
        bounds, owners = [0], []
        for stage, (a, b) in enumerate(pairwise((0, *chosen, len(parts)))):
            inner = [a + place for place in _within(parts[a:b], finer)]
            inner = sorted({*inner, *(place for place in getattr(self.model, "forced", ()) if a < place < b)})
            owners += [stage] * (len(inner) + 1)
            bounds += [*inner, b]
        segments = self._segments(bounds, owners)
        return Cut(self.model, tuple(bounds), segments, self._names, self._shares)

    def _given(self, stages: int, cuts: Sequence[str]) -> list[int]:
        if len(cuts) != stages - 1:
            bound = f"must name {stages - 1} layers to make {stages} stages"
            raise ConfigurationError("cuts", bound, "+".join(cuts), "name the layer after each cut")
        places = [self._place(name) for name in cuts]
        if sorted(set(places)) != places:
            bound = "must name layers in forward order, each once"
            raise ConfigurationError("cuts", bound, "+".join(cuts), "sort them as the model has them")
        return places

    def _place(self, name: str) -> int:
        parts = self.model.parts
        found = next((n for n, part in enumerate(parts) if f"{part.name}.".startswith(f"{name}.")), None)
        if found is None:
            names = list(dict.fromkeys(part.name for part in parts))
            near = difflib.get_close_matches(name, names, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"its layers are {', '.join(names[:12])}"
            raise ConfigurationError("cuts", "must name layers of the model", name, remedy)
        obstacle = "nothing is before it" if found == 0 else parts[found - 1].obstacle
        if obstacle:
            remedy = "cut elsewhere: see paceline cut"
            raise ConfigurationError("cuts", f"must be possible, but {obstacle}", name, remedy)
        return found

    def _segments(self, bounds: Sequence[int], stages: Sequence[int]) -> tuple[Segment, ...]:
        parts = self.model.parts
        whole = getattr(self.model, "whole_operations", None)
        total = (sum(part.operations for part in parts) if whole is None else whole) or 1.0
        segments = []
        for number, (a, b) in enumerate(pairwise(bounds)):
            own = parts[a:b]
            names = tuple(dict.fromkeys(name for part in own for name in part.parameters))
            if number == 0:  # weight decay changes what takes no part, too: somebody must hold it
                names += self._unused
            operations = sum(part.operations for part in own)
            first, last = self._names.between(a, b)
            segment = Segment(
                number=number,
                stage=stages[number],
                first=first,
                last=last,
                parameters=names,
                buffers=tuple(dict.fromkeys(name for part in own for name in part.buffers)),
                parameter_count=sum(self._sizes[name] for name in names),
                operations=operations,
                flops=sum(part.flops for part in own),
                moved_bytes=sum(part.moved_bytes for part in own),
                share=operations / total,
                bytes_in=parts[a - 1].crossing_bytes if a else 0,
                values_out=parts[b - 1].crossing if b < len(parts) else (),
                **self._summed(bounds, number, names),
            )
            segments.append(segment)
        return tuple(segments)

    def _summed(self, bounds: Sequence[int], number: int, names: Sequence[str]) -> dict[str, Any]:
        """What a segment sums with the other ranks of its tensor group, and what it has a part of."""
        if self._shares is None:
            return {}
        model: Any = self.model
        a, b = bounds[number], bounds[number + 1]
        return {
            "sums": model.sums(b) if b < bounds[-1] else (),
            "gradient_sums": model.gradient_sums(bounds[number - 1], a) if a else (),
            "parted": tuple(name for name in names if name in self._shares.of),
            "partial": tuple(name for name in names if name in model.partial),
        }


def _within(parts: Sequence[Part], segments: int) -> list[int]:
    """Where to cut a stage into segments: into fewer, if it has not so many layers."""
    most = 1 + sum(not part.obstacle for part in parts[:-1])
    return choose(parts, min(segments, most)) or []


def cut_model(task: Task, module: nn.Module, batch: Any, segments: int, cuts: Sequence[str] = ()) -> Cut:
    """Cut a model into segments, by a small batch of its data. The same on every rank: nothing is measured."""
    return Layers.of(task, module, batch).cut(segments, cuts)


def few_samples(samples: Samples, batch: Batch) -> Any:
    """Some samples of a batch to try a model with.

    So many that no other dimension of them has that size, where that can be: or the two might be taken for one.
    """

    def some(count: int) -> Any:
        return samples.content(Batch(batch.step, 0, count, batch.total, batch.whole), 0)

    sizes = {size for leaf in tree_leaves(some(1)) if isinstance(leaf, Tensor) for size in leaf.shape[1:]}
    return some(next((n for n in _TRIED if n <= batch.total and n not in sizes), batch.total))


def _parts(module: nn.Module, arguments: Arguments, samples: int, *, trace: bool = False) -> Any:
    was_training = module.training
    module.train()
    try:
        if is_chain(module) and not trace:
            return Chain(module, arguments, samples)
        from paceline.replica.pieces.traced import Traced  # torch.export takes a while to import

        return Traced(module, arguments, samples)
    finally:
        module.train(was_training)


def samples_in(arguments: Arguments) -> int:
    """How many samples there are: the length of the first tensor."""
    tensors = (leaf for leaf in tree_leaves(tuple(arguments)) if isinstance(leaf, torch.Tensor))
    first: Tensor | None = next((tensor for tensor in tensors if tensor.dim()), None)
    if first is None or not len(first):
        raise ConfigurationError("data", "must yield tensors to a model that is cut", "none", "collate them")
    return len(first)
