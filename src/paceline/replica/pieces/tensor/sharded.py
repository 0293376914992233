"""A traced model of which each rank of a tensor group computes its part.

It is cut where ranks talk: see `building`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping

from torch import Tensor, fx

from paceline.context.segment import Together
from paceline.errors import ConfigurationError
from paceline.replica.pieces.tensor.building import ENTERED, Built
from paceline.replica.pieces.tensor.following import name_of
from paceline.replica.pieces.tensor.found import Facts, Region, Role, Stuck
from paceline.replica.pieces.tensor.planning import find, find_with_loss, wants_loss
from paceline.replica.pieces.tensor.sequence import follow_sequence
from paceline.replica.pieces.tensor.spec import Shares
from paceline.replica.pieces.traced import Traced

__all__ = ["Sharded"]

_log = logging.getLogger("paceline")


class Sharded(Traced):
    """Its parts are the operations of one rank; `at` says of which."""

    def __init__(
        self,
        traced: Traced,
        roles: Mapping[str, Role],
        size: int,
        behind: Callable[[Traced], Traced] | None = None,
        *,
        sequence: bool = False,
    ) -> None:
        """`behind` gives the model with the task's loss behind it: for outputs that are split. With `sequence`, each
        rank has a part of the sequence of values between split layers."""
        self._position = 0
        facts = _facts(traced)
        region = find(facts, roles, size)
        self.has_loss = False
        """Whether what the last part gives is the loss."""
        if behind is not None and wants_loss(facts, roles, region):
            found = _with_loss(traced, roles, size, behind)
            if found is not None:
                (traced, region), self.has_loss = found, True
        if sequence:
            region = _in_sequence(traced, region, size)
        self.shares = Shares(size, region.parameters)
        self.partial = frozenset(region.partial)
        """Parameters of whose gradient each rank has a part."""
        self.whole_operations = sum(part.operations for part in traced.parts)
        built = Built(traced, region, size)
        self._edits, self._joints = built.edits, built.joints
        self.begin(built.exported, built.trial)
        self.forced = self._forced()
        """Where it must be cut: where ranks talk."""

    def at(self, position: int) -> Sharded:
        """The same for another rank of the group."""
        other = copy.copy(self)
        other._position = position
        return other

    def _forced(self) -> tuple[int, ...]:
        places = []
        for place, node in enumerate(self._nodes[:-1]):
            follows = self._nodes[place + 1]
            if node in self._joints and not (self._is_entered(node) and self._is_entered(follows)):
                self._check_cut(place)
                places.append(place + 1)
        return tuple(places)

    def _is_entered(self, node: fx.Node) -> bool:
        """Whether nothing is done with a value but with its gradient: one cut serves several of them."""
        return self._joints.get(node) == ENTERED

    def _check_cut(self, place: int) -> None:
        if self.parts[place].obstacle:
            bound = f"must be one that can be cut after {self.parts[place].name}, where ranks sum"
            remedy = "leave that layer out of the plan"
            raise ConfigurationError("model", bound, self.parts[place].obstacle, remedy)

    def sums(self, place: int) -> tuple[Together, ...]:
        """What ranks make one of at the cut at a place: partial sums and the like that are made right before it."""
        found = []
        for number, node in enumerate(self._crossing[place]):
            joint = self._joints.get(node)
            if joint is not None and joint.forward is not None and self._place[node] == place - 1:
                found.append(Together(number, joint.forward, joint.dim, joint.length))
        return tuple(found)

    def gradient_sums(self, before: int, place: int) -> tuple[Together, ...]:
        """What they make one of among the gradients: of what is made right before the cut at a place, and of all that
        is entered before it, behind the cut before."""
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
                found.append(Together(number, joint.backward, joint.dim, joint.length))
        return tuple(found)

    def _copy(self, graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
        made = super()._copy(graph, node, copies)
        for edit in self._edits.get(node, ()):
            made = edit(graph, made, self._position, self.shares.size)
        return made


def _with_loss(
    traced: Traced, roles: Mapping[str, Role], size: int, behind: Callable[[Traced], Traced]
) -> tuple[Traced, Region] | None:
    """The model with its loss, if that can be done on parts of the outputs. None: they are put together."""
    try:
        whole = behind(traced)
        return whole, find_with_loss(_facts(whole), roles, size)
    except Stuck as stuck:
        reason = stuck.reason or f"no rule for {name_of(stuck.node)}"
    except ConfigurationError as error:
        reason = str(error)
    _log.info("the loss is computed of whole outputs: %s", reason)
    return None


def _in_sequence(traced: Traced, region: Region, size: int) -> Region:
    try:
        return follow_sequence(_facts(traced), region, size)
    except Stuck as stuck:
        bound = "must be left out of a model whose values cannot be parted by the sequence"
        value = stuck.reason or f"no rule for {name_of(stuck.node)}"
        raise ConfigurationError("sequence", bound, value, "leave it out") from stuck


def _facts(traced: Traced) -> Facts:
    trial, exported = traced.trial, traced.exported
    wanted: set[fx.Node] = {node for node, name in trial.parameters.items() if name in trial.trainable}
    for node in exported.nodes:
        value = trial.values[node]
        learns = not isinstance(value, Tensor) or value.is_floating_point()
        if learns and any(each in wanted for each in node.all_input_nodes):
            wanted.add(node)
    return Facts(
        exported.nodes,
        exported.output,
        trial.values,
        trial.parameters,
        frozenset(wanted),
        exported.batch_symbols,
    )
