"""A traced model split among the ranks of a tensor group.

It is cut where ranks communicate: see `building`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping

from torch import Tensor, fx

from paceline.context.segment import GroupReduction
from paceline.errors import ConfigurationError
from paceline.model.cutting.traced import Traced
from paceline.model.tensor_parallel.building import ENTERED, Built
from paceline.model.tensor_parallel.following import name_of
from paceline.model.tensor_parallel.found import Facts, Region, Role, Stuck
from paceline.model.tensor_parallel.planning import find, find_with_loss, wants_loss
from paceline.model.tensor_parallel.sequence import follow_sequence
from paceline.model.tensor_parallel.spec import Shares

_log = logging.getLogger("paceline")


class Sharded(Traced):
    """A model with the operations of one rank as its parts. `at` selects the rank."""

    def __init__(
        self,
        traced: Traced,
        roles: Mapping[str, Role],
        size: int,
        behind: Callable[[Traced], Traced] | None = None,
        *,
        sequence: bool = False,
    ) -> None:
        """`behind` returns the model with the task's loss appended, for outputs that are split. With `sequence`, values
        between split layers are split by sequence.
        """
        self._position = 0
        self.has_loss = False
        """Whether the output of the last part is the loss."""
        unsplit: frozenset[str] = frozenset()
        while True:
            self._split(traced, roles, size, behind, sequence, unsplit)
            places = self._places()
            blocked = next((place for place in places if self.parts[place].obstacle), None)
            if blocked is None:
                break
            more = frozenset[str]() if roles else self._split_at(blocked)
            if not more:
                raise self._refusal(blocked)
            unsplit |= more
        self.forced = tuple(place + 1 for place in places)
        """Places of mandatory cuts: where ranks communicate."""
        if self.replicated:
            _log.info("not split, so every rank computes them whole: %s", ", ".join(self.replicated))

    def _split(
        self,
        traced: Traced,
        roles: Mapping[str, Role],
        size: int,
        behind: Callable[[Traced], Traced] | None,
        sequence: bool,
        unsplit: frozenset[str],
    ) -> None:
        """Build the parts of a rank. Weights in `unsplit` stay whole."""
        facts = _facts(traced, unsplit)
        region = find(facts, roles, size)
        self.has_loss = False
        if behind is not None and wants_loss(facts, roles, region):
            found = _with_loss(traced, roles, size, behind, unsplit)
            if found is not None:
                (traced, region), self.has_loss = found, True
        if sequence:
            region = _in_sequence(traced, region, size)
        self.shares = Shares(size, region.parameters)
        self.partial = frozenset(region.partial)
        """Parameters used on parts of the sequence. Each rank has a partial sum of their gradient."""
        self.replicated = _replicated(traced, self.shares)
        """Layers with matrices that every rank stores and computes whole."""
        self.whole_operations = sum(part.operations for part in traced.parts)
        built = Built(traced, region, size)
        self._edits, self._joints = built.edits, built.joints
        self.begin(built.exported, built.trial)

    def at(self, position: int) -> Sharded:
        """Return the same model for another rank of the group."""
        other = copy.copy(self)
        other._position = position
        return other

    def _places(self) -> list[int]:
        """Return the operations after which ranks communicate."""
        places = []
        for place, node in enumerate(self._nodes[:-1]):
            follows = self._nodes[place + 1]
            if node in self._joints and not (self._is_entered(node) and self._is_entered(follows)):
                places.append(place)
        return places

    def _split_at(self, place: int) -> frozenset[str]:
        """Return the split weights that are the reason for a reduction: the next ones if only gradients are reduced,
        otherwise the last ones. Empty if there are none.
        """
        ahead = range(place + 1, len(self.parts))
        for number in ahead if self._is_entered(self._nodes[place]) else range(place, -1, -1):
            if found := frozenset(self.parts[number].parameters) & self.shares.of.keys():
                return found
        return frozenset()

    def _is_entered(self, node: fx.Node) -> bool:
        """Return whether only the gradient of a value is reduced. Several such values need only one cut."""
        return self._joints.get(node) == ENTERED

    def _refusal(self, place: int) -> ConfigurationError:
        bound = f"must be one that can be cut after {self.parts[place].name}, where ranks sum"
        remedy = "leave that layer out of the plan"
        return ConfigurationError("model", bound, self.parts[place].obstacle, remedy)

    def reductions(self, place: int) -> tuple[GroupReduction, ...]:
        """Return the reductions at a cut, of values computed directly before it."""
        found = []
        for number, node in enumerate(self._crossing[place]):
            joint = self._joints.get(node)
            if joint is not None and joint.forward is not None and self._place[node] == place - 1:
                found.append(GroupReduction(number, joint.forward, joint.dim, joint.length))
        return tuple(found)

    def gradient_reductions(self, before: int, place: int) -> tuple[GroupReduction, ...]:
        """Return the reductions of gradients at the cut `place`: of values computed directly before it, and of all
        values entered between the cut `before` and this one.
        """
        first = place - 1
        while (
            first > before
            and self._is_entered(self._nodes[first])
            and self._is_entered(self._nodes[first - 1])
        ):
            first -= 1
        found = []
        for number, node in enumerate(self._crossing[place]):
            joint = self._joints.get(node)
            if joint is not None and joint.backward is not None and first <= self._place[node]:
                found.append(GroupReduction(number, joint.backward, joint.dim, joint.length))
        return tuple(found)

    def _copy(self, graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
        made = super()._copy(graph, node, copies)
        for edit in self._edits.get(node, ()):
            made = edit(graph, made, self._position, self.shares.size)
        return made


def _replicated(traced: Traced, shares: Shares) -> tuple[str, ...]:
    """Return the layers with trainable matrices or filters that are not split, in forward order."""
    trial = traced.trial
    found: dict[str, None] = {}
    for node, name in trial.parameters.items():
        if name in trial.trainable and name not in shares.of and trial.values[node].dim() > 1:
            found[name.rpartition(".")[0] or name] = None
    return tuple(found)


def _with_loss(
    traced: Traced,
    roles: Mapping[str, Role],
    size: int,
    behind: Callable[[Traced], Traced],
    unsplit: frozenset[str],
) -> tuple[Traced, Region] | None:
    """Append the loss, if it can be computed on parts of the outputs. None if the outputs must be gathered."""
    try:
        whole = behind(traced)
        return whole, find_with_loss(_facts(whole, unsplit), roles, size)
    except Stuck as stuck:
        reason = stuck.reason or f"no rule for {name_of(stuck.node)}"
    except ConfigurationError as error:
        reason = str(error)
    _log.info("the loss is computed from whole outputs: %s", reason)
    return None


def _in_sequence(traced: Traced, region: Region, size: int) -> Region:
    try:
        return follow_sequence(_facts(traced), region, size)
    except Stuck as stuck:
        bound = "must be left out of a model with values that cannot be split by sequence"
        value = stuck.reason or f"no rule for {name_of(stuck.node)}"
        raise ConfigurationError("sequence", bound, value, "leave it out") from stuck


def _facts(traced: Traced, unsplit: frozenset[str] = frozenset()) -> Facts:
    trial, exported = traced.trial, traced.exported
    wanted: set[fx.Node] = {node for node, name in trial.parameters.items() if name in trial.trainable}
    for node in exported.nodes:
        value = trial.values[node]
        learns = not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex()
        if learns and any(each in wanted for each in node.all_input_nodes):
            wanted.add(node)
    return Facts(
        exported.nodes,
        exported.output,
        trial.values,
        trial.parameters,
        frozenset(wanted),
        exported.batch_symbols,
        unsplit,
    )
