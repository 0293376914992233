"""Sequence parallelism: between split layers each rank has its part of the sequence of every value.

Where a partial sum was summed, each rank has its part of the sum then; where a value was entered, the parts are put
together first. Norms, dropout and what else looks at each place of a sequence by itself are done on parts.
Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, fx

from paceline.errors import ConfigurationError
from paceline.replica.pieces.exporting import symbols_in
from paceline.replica.pieces.tensor.following import NoRule, name_of
from paceline.replica.pieces.tensor.found import Facts, Region, Role, Stuck
from paceline.replica.pieces.tensor.region import Walk, refine
from paceline.replica.pieces.tensor.spec import Split
from paceline.replica.pieces.tensor.views import Refine

__all__ = ["follow_sequence"]

_TURNS = 16
_BEGINNINGS = ("embedding", "linear")
"""Operations behind which a sequence may be parted, if nothing before them has a gradient."""
_VIEWS = ("view", "reshape", "_unsafe_view", "unflatten", "transpose", "permute", "contiguous")
"""Operations that may stand between a partial sum and its parts: they change nothing but where its values lie."""


def follow_sequence(facts: Facts, region: Region, size: int) -> Region:
    """A region with the same layers split, and the sequence of what is between them.

    Raises Stuck, and `ConfigurationError` if nothing between them has a sequence.
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
    """It follows two kinds of splits: of columns within split layers, of the sequence between them."""

    def __init__(
        self,
        facts: Facts,
        roles: Mapping[str, Role],
        refined: Mapping[str, tuple[int, int]],
        size: int,
        whole: set[str],
    ) -> None:
        """`whole`: parameters that must not be used for parts."""
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
        """Parameters that are used for parts and for whole values: their gradient would be neither."""
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
        """Whether each rank takes its part of what an operation gives, which all do alike."""
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
        """What cannot be done on parts of a sequence is done on the whole of it."""
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

    # What rules ask

    def split(self, node: Any) -> Split | None:
        return None if (self._now, node) in self._region.gathers else super().split(node)

    def take(self, node: fx.Node, value: fx.Node, split: Split) -> None:
        name = self._facts.parameters.get(value)
        if name is None or value not in self._facts.wanted or not split.sequence:
            super().take(node, value, split)
            return
        if name in self._whole:
            raise NoRule(f"its parameter {name} is used for whole values, too")
        self._uses.setdefault(name, set()).add(node)
        self._narrow(node, value, split)

    def _sum_up(self, node: fx.Node) -> None:
        """Each rank gets its part of the sum, where it has a sequence: right here or behind some views."""
        where: fx.Node | None = node
        while where is not None and self._sequence_dim(where) is None:
            user = next(iter(where.users)) if len(where.users) == 1 else None
            where = user if user is not None and name_of(user) in _VIEWS else None
        if where is None:
            self.sum(node)
            return
        self._region.scatters[where] = self._region.states[where] = self._sequence_of(where)
        self._region.shared[node] = None

    # Where the sequence is

    def _sequence_of(self, node: fx.Node) -> Split:
        dim = self._sequence_dim(node)
        assert dim is not None
        length = self.shape(node)[dim]
        if length % self._size:
            bound = f"must divide the {length} places of a sequence, where sequence=true"
            divisors = ", ".join(str(n) for n in range(1, length + 1) if length % n == 0)
            remedy = f"use one of {divisors}, pad the sequences, or leave sequence out"
            raise ConfigurationError("size", bound, self._size, remedy)
        return Split(dim, length, sequence=True)

    def _sequence_dim(self, node: fx.Node) -> int | None:
        """Of three dimensions the one that is neither the batch nor the features, which come last."""
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value.dim() != 3:
            return None
        batch = [dim for dim in (0, 1) if symbols_in(value.shape[dim]) & self._batch] if self._batch else [0]
        return 1 - batch[0] if len(batch) == 1 else None
