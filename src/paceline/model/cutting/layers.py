"""Cutting a model into segments. A trial run of the model finds its layers. Cuts are set by the user or found here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from paceline.context import Batch, Segment
from paceline.data.samples import Samples
from paceline.errors import ConfigurationError
from paceline.model.cutting.blame import ONE_SIZE
from paceline.model.cutting.chain import Chain, is_chain
from paceline.model.cutting.choosing import choose
from paceline.model.cutting.cut import Cut
from paceline.model.cutting.naming import Names
from paceline.model.cutting.parts import Arguments, Part, Parts
from paceline.model.cutting.recomputed import recomputed_places
from paceline.model.optimizer.flat import works_on_parts
from paceline.model.tensor_parallel.spec import Shares
from paceline.task.calls import arguments_of
from paceline.task.task import Task

_TRIED = (5, 7, 3, 11, 13, 2)
"""Numbers of samples to try a model with, in order of preference."""


@dataclass(frozen=True, slots=True)
class TrialSamples:
    """Samples to try a model with. Only their shapes are used."""

    few: Callable[[], Any]
    """Return a small batch. Its size differs from that of the run's batches."""
    one_pass: Callable[[], Any]
    """Return a micro-batch of the run. Raise ConfigurationError if micro-batches differ in size."""

    def to(self, device: torch.device | str) -> TrialSamples:
        here = partial(tree_map, lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf)
        return TrialSamples(lambda: here(self.few()), lambda: here(self.one_pass()))


class Layers:
    """Parts of a model, found by a trial with a few samples. The model can then be cut in different ways."""

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
        self._even: tuple[str, ...] = even_layers(module)
        self._made: dict[tuple[int, tuple[str, ...], int | None], Cut] = {}

    @classmethod
    def of(
        cls,
        task: Task,
        module: nn.Module,
        batch: Any,
        *,
        tensor: int = 1,
        sequence: bool = False,
        one_size: bool = False,
    ) -> Layers:
        """Find the parts of a model. `batch` is a small batch of the task's data. Only its shapes are used.

        With `tensor`, matrices are split among `tensor` ranks, and the parts belong to one rank. With `sequence`,
        the sequence is split too, between the split layers. With `one_size`, all batches have the size of this one.
        """
        if task.step is not None:
            remedy = "give the task a loss, or choose a strategy that keeps the model whole"
            raise ConfigurationError("step", "must not be given if the model is cut", task.step, remedy)
        arguments = Arguments(*arguments_of(task, module, batch))
        if tensor == 1:
            return cls(module, _parts(module, arguments, samples_in(arguments), one_size=one_size))
        for each in task.by_optimizer().values():
            optimizer = each.build_optimizer(module)
            if not works_on_parts(optimizer):
                bound = "must be elementwise, or LARS or LAMB, if matrices are split"
                remedy = "choose SGD, Adam or the like, or another strategy"
                raise ConfigurationError("optimizer", bound, type(optimizer).__name__, remedy)
        from paceline.model.tensor_parallel.planning import roles_of
        from paceline.model.tensor_parallel.sharded import Sharded
        from paceline.model.tensor_parallel.traced_loss import with_loss

        roles = roles_of(task.tensor_plan or {}, module)
        traced = _parts(module, arguments, samples_in(arguments), trace=True, one_size=one_size)
        return cls(
            module,
            Sharded(traced, roles, tensor, lambda model: with_loss(task, model, batch), sequence=sequence),
        )

    @classmethod
    def of_samples(
        cls, task: Task, module: nn.Module, samples: TrialSamples, *, tensor: int = 1, sequence: bool = False
    ) -> Layers:
        """Find the parts of a model for batches of any size, or else for the size of the run."""
        find = partial(cls.of, task, module, tensor=tensor, sequence=sequence)
        try:
            return find(samples.few())
        except ConfigurationError as error:
            try:
                return find(samples.one_pass(), one_size=True)
            except ConfigurationError as other:
                raise (other if error.value == ONE_SIZE else error) from None

    @property
    def most(self) -> int:
        """Maximum number of segments."""
        return 1 + sum(not part.obstacle for part in self.model.parts[:-1])

    def cut(self, stages: int, cuts: Sequence[str] = (), *, finer: int | None = 1) -> Cut:
        """Cut into `stages` stages of about equal seconds, or before the layers named in `cuts`.

        Each stage is cut into `finer` segments, or one per layer if it has fewer layers. With None, the segments
        are those that need the least memory with recomputation.
        """
        key = stages, tuple(cuts), finer
        if key not in self._made:  # a thousand simulated ranks use the same cut
            self._made[key] = self._cut(*key)
        return self._made[key]

    def _cut(self, stages: int, cuts: Sequence[str], finer: int | None) -> Cut:
        parts = self.model.parts
        cuts = cuts or self._even_cuts(stages)
        chosen = self._given(stages, cuts) if cuts else choose(parts, stages)
        if stages < 1 or chosen is None:
            remedy = "use fewer stages (or chunks), or a model of more layers"
            bound = f"must make 1 to {self.most} segments of this model"
            raise ConfigurationError("stages x chunks", bound, stages, remedy)
        bounds, owners = [0], []
        for stage, (a, b) in enumerate(pairwise((0, *chosen, len(parts)))):
            own = parts[a:b]
            inner = [
                a + place for place in (recomputed_places(own) if finer is None else _within(own, finer))
            ]
            inner = sorted({*inner, *(place for place in getattr(self.model, "forced", ()) if a < place < b)})
            owners += [stage] * (len(inner) + 1)
            bounds += [*inner, b]
        segments = self._segments(bounds, owners)
        return Cut(self.model, tuple(bounds), segments, self._names, self._shares)

    def in_one_stage(self, places: Sequence[int]) -> Cut:
        """Cut into segments of one stage at these places, and where a tensor group communicates."""
        inner = sorted({*places, *getattr(self.model, "forced", ())})
        bounds = [0, *inner, len(self.model.parts)]
        segments = self._segments(bounds, [0] * (len(bounds) - 1))
        return Cut(self.model, tuple(bounds), segments, self._names, self._shares)

    def _even_cuts(self, stages: int) -> tuple[str, ...]:
        """Return the layers to cut before, for stages with equal numbers of blocks. Empty if it is not possible."""
        share, rest = divmod(len(self._even), max(stages, 1))
        return () if rest else self._even[share::share] if share else ()

    def _given(self, stages: int, cuts: Sequence[str]) -> list[int]:
        if len(cuts) != stages - 1:
            bound = f"must name {stages - 1} layers to make {stages} stages"
            raise ConfigurationError("cuts", bound, "+".join(cuts), "name the layer after each cut")
        places = [self._place(name) for name in cuts]
        if sorted(set(places)) != places:
            bound = "must name layers in forward order, each once"
            raise ConfigurationError("cuts", bound, "+".join(cuts), "list them in forward order")
        return places

    def _place(self, name: str) -> int:
        parts = self.model.parts
        found = next((n for n, part in enumerate(parts) if f"{part.name}.".startswith(f"{name}.")), None)
        if found is None:
            names = list(dict.fromkeys(part.name for part in parts))
            near = difflib.get_close_matches(name, names, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"its layers are {', '.join(names[:12])}"
            raise ConfigurationError("cuts", "must name layers of the model", name, remedy)
        obstacle = "it is the first layer" if found == 0 else parts[found - 1].obstacle
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
            if number == 0:  # unused parameters: weight decay changes them, so a segment must hold them
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
                launches=sum(part.launches for part in own),
                weight_bytes=sum(part.weight_bytes for part in own),
                share=operations / total,
                bytes_in=parts[a - 1].crossing_bytes if a else 0,
                values_out=parts[b - 1].crossing if b < len(parts) else (),
                **self._summed(bounds, number, names),
            )
            segments.append(segment)
        return tuple(segments)

    def _summed(self, bounds: Sequence[int], number: int, names: Sequence[str]) -> dict[str, Any]:
        """Return the reductions of a segment in its tensor group, and the parameters that are split."""
        if self._shares is None:
            return {}
        model: Any = self.model
        a, b = bounds[number], bounds[number + 1]
        return {
            "reductions": model.reductions(b) if b < bounds[-1] else (),
            "gradient_reductions": model.gradient_reductions(bounds[number - 1], a) if a else (),
            "parted": tuple(name for name in names if name in self._shares.of),
            "partial": tuple(name for name in names if name in model.partial),
        }


def even_layers(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the equal blocks of a model, if stages are to have equal numbers of blocks."""
    name = getattr(module, "even_stages", None)
    if not isinstance(name, str):
        return ()
    return tuple(f"{name}.{number}" for number in range(len(list(module.get_submodule(name).children()))))


def _within(parts: Sequence[Part], segments: int) -> list[int]:
    """Return the places to cut a stage at. There are fewer than `segments` segments if the stage has fewer layers."""
    most = 1 + sum(not part.obstacle for part in parts[:-1])
    return choose(parts, min(segments, most)) or []


def few_samples(samples: Samples, batch: Batch) -> Any:
    """Return some samples of a batch, for the trial of a model.

    If possible, their number differs from every other size. Otherwise tracing could confuse the two sizes.
    """

    def some(count: int) -> Any:
        return samples.content(Batch(batch.step, 0, count, batch.total, batch.whole), 0)

    sizes = {size for leaf in tree_leaves(some(1)) if isinstance(leaf, Tensor) for size in leaf.shape[1:]}
    return some(next((n for n in _TRIED if n <= batch.total and n not in sizes), batch.total))


def _parts(
    module: nn.Module, arguments: Arguments, samples: int, *, trace: bool = False, one_size: bool = False
) -> Any:
    was_training = module.training
    module.train()
    try:
        if is_chain(module) and not trace:
            return Chain(module, arguments, samples)
        from paceline.model.cutting.traced import Traced  # torch.export takes a while to import

        return Traced(module, arguments, samples, one_size=one_size)
    finally:
        module.train(was_training)


def samples_in(arguments: Arguments) -> int:
    """Return the number of samples: the length of the first tensor."""
    tensors = (leaf for leaf in tree_leaves(tuple(arguments)) if isinstance(leaf, torch.Tensor))
    first: Tensor | None = next((tensor for tensor in tensors if tensor.dim()), None)
    if first is None or not len(first):
        raise ConfigurationError("data", "must yield tensors to a model that is cut", "none", "collate them")
    return len(first)
