"""Sequence parallelism: between split layers, each rank has one part of the sequence of every value.

Partial sums are reduce-scattered along the sequence instead of summed. Values are all-gathered before they enter split
layers. Norms, dropout and other operations that treat each position by itself are computed on parts.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, fx

from paceline.errors import ConfigurationError
from paceline.model.cutting.exporting import symbols_in
from paceline.model.tensor_parallel.following import NoRule, name_of
from paceline.model.tensor_parallel.found import Facts, Region, Role, Stuck
from paceline.model.tensor_parallel.region import Walk, refine
from paceline.model.tensor_parallel.spec import Split
from paceline.model.tensor_parallel.views import Refine

_TURNS = 16
_BEGINNINGS = ("embedding", "linear")
"""Operations after which a sequence may be split, if nothing before them has a gradient."""
_VIEWS = ("reshape", "_unsafe_view", "unflatten", "transpose", "permute", "contiguous")
"""Operations allowed between a partial sum and its reduce-scatter: they change only the layout."""


def follow_sequence(facts: Facts, region: Region, size: int) -> Region:
    """Return a region with the same layers split, and with the sequence split between them.

    Raise Stuck if this is impossible, and `ConfigurationError` if no value between the layers has a sequence.
    """
    whole: set[str] = set()
    refined = dict(region.refined)
    for _ in range(_TURNS):
        walk = _SequenceWalk(facts, region.roles, refined, size, whole)
        try:
            found = walk.run()
        except Refine as wish:
            refine(refined, wish)
            continue
        mixed = walk.mixed
        if not mixed:
            return _checked(found)
        whole |= mixed
    raise Stuck(facts.output, "its columns cannot be split so that all uses of them fit")


def _checked(region: Region) -> Region:
    if region.scatters:
        return region
    bound = "must be left out of a model without sequences: no value of three dimensions (batch, sequence and features)"
    remedy = "leave it out, or choose a model of sequences"
    raise ConfigurationError("sequence", f"{bound} comes from layers split by rows", True, remedy)


class _SequenceWalk(Walk):
    """Walk that propagates two kinds of splits: of columns within split layers, and of the sequence between them."""

    def __init__(
        self,
        facts: Facts,
        roles: Mapping[str, Role],
        refined: Mapping[str, tuple[int, int]],
        size: int,
        whole: set[str],
    ) -> None:
        """`whole` has the parameters that must not be used on parts."""
        super().__init__(facts, roles, refined, None)
        self._size = size
        self._whole = whole
        self._now: fx.Node | None = None
        self._uses: dict[str, set[fx.Node]] = {}
        self._batch = facts.batch_symbols

    def run(self) -> Region:
        region = super().run()
        region.partial = dict.fromkeys(self._uses)
        return region

    @property
    def mixed(self) -> set[str]:
        """Parameters used on parts and on whole values.

        Such a gradient would be neither a partial sum nor complete.
        """
        return {name for name, uses in self._uses.items() if uses != set(self._facts.users(name))}

    def _nodes(self) -> Iterable[fx.Node]:
        waiting: set[fx.Node] = set()
        for node in self._facts.nodes:
            if node in waiting or self._has_role(node) or self._begins(node) or node in self._region.scatters:
                yield node
                if self._region.states.get(node) is not None and node not in self._region.at_once:
                    waiting.update(node.users)

    def _has_role(self, node: fx.Node) -> bool:
        return self._facts.weight(node) in self._roles

    def _begins(self, node: fx.Node) -> bool:
        """Return whether each rank takes its part of the output of an operation that all ranks compute equally."""
        facts = self._facts
        if node not in facts.wanted or name_of(node) not in _BEGINNINGS or self._has_role(node):
            return False
        dim = self._sequence_dim(node)
        if dim is None or self.shape(node)[dim] % self._size:
            return False
        return not any(each in facts.wanted for each in node.all_input_nodes if each not in facts.parameters)

    def _visit(self, node: fx.Node) -> None:
        self._now = node
        if node in self._region.scatters:
            return
        if self._begins(node):
            self._region.takes[node] = self._region.states[node] = self._sequence_of(node)
            return
        parts = [value for value in node.all_input_nodes if self._region.is_sequence(value)]
        try:
            super()._visit(node)
        except NoRule:
            if not parts:
                raise
        except Refine as wish:
            if wish.origins:
                raise
        else:
            return
        self._visit_whole(node, parts)

    def _visit_whole(self, node: fx.Node, parts: Iterable[fx.Node]) -> None:
        """Compute an operation on the whole sequence if it cannot be computed on parts."""
        region = self._region
        region.edits.pop(node, None)
        for uses in self._uses.values():
            uses.discard(node)
        for found in (region.enters, region.gathers):
            for key in [key for key in found if key[0] is node]:
                del found[key]
        region.gathers.update({(node, value): None for value in parts})
        if any(self.split(value) is not None for value in node.all_input_nodes):
            super()._visit(node)

    # Interface for rules

    def split(self, node: Any) -> Split | None:
        return None if (self._now, node) in self._region.gathers else super().split(node)

    def take(self, node: fx.Node, value: fx.Node, split: Split) -> None:
        name = self._facts.parameters.get(value)
        if name is None or value not in self._facts.wanted or not split.sequence:
            super().take(node, value, split)
            return
        if name in self._whole:
            raise NoRule(f"its parameter {name} is also used for whole values")
        self._uses.setdefault(name, set()).add(node)
        self._narrow(node, value, split)

    def _sum_up(self, node: fx.Node) -> None:
        """Reduce-scatter a sum along the sequence, here or after some views. Sum it if there is no sequence."""
        where: fx.Node | None = node
        while where is not None and self._sequence_dim(where) is None:
            user = next(iter(where.users)) if len(where.users) == 1 else None
            where = user if user is not None and name_of(user) in _VIEWS else None
        if where is None:
            self.sum(node)
            return
        self._region.scatters[where] = self._region.states[where] = self._sequence_of(where)
        self._region.shared[node] = None

    # The sequence dimension

    def _sequence_of(self, node: fx.Node) -> Split:
        dim = self._sequence_dim(node)
        assert dim is not None
        length = self.shape(node)[dim]
        if length % self._size:
            bound = f"must divide the sequence length {length} if sequence=true"
            divisors = ", ".join(str(n) for n in range(1, length + 1) if length % n == 0)
            remedy = f"use one of {divisors}, pad the sequences, or leave sequence out"
            raise ConfigurationError("size", bound, self._size, remedy)
        return Split(dim, length, sequence=True)

    def _sequence_dim(self, node: fx.Node) -> int | None:
        """Return the sequence dimension of a three-dimensional value: neither the batch nor the last. None if there is
        none.
        """
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value.dim() != 3:
            return None
        batch = [dim for dim in (0, 1) if symbols_in(value.shape[dim]) & self._batch] if self._batch else [0]
        return 1 - batch[0] if len(batch) == 1 else None
