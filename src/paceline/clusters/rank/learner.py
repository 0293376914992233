"""The part of a context that learns, as far as it is the same in every world. A world adds how it computes."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar, cast

from torch import Tensor

from paceline.clusters.rank.data import TrainingData
from paceline.clusters.rank.rank import Rank
from paceline.context import Batch, Pieces
from paceline.errors import ConfigurationError, GradientNotFiniteError, LossNotFiniteError
from paceline.replica.blueprint import Blueprint
from paceline.replica.memory import Account
from paceline.replica.replica import Replica

__all__ = ["Learner"]

R = TypeVar("R", bound=Rank)


class Learner(ABC, Generic[R]):
    """A rank's replica of the model. Its subclasses satisfy `paceline.context.Model`."""

    __slots__ = (
        "_blueprint",
        "_ctx",
        "_is_shared",
        "_looks",
        "_pieces",
        "_replica",
        "_states_account",
        "_twins",
        "account",
        "states",
        "updates",
    )

    def __init__(self, ctx: R, source: Replica | Blueprint | None) -> None:
        """`source`: the rank's replica, or what it is made of when it is first used."""
        self._ctx = ctx
        self._replica: Replica | None = None
        self._blueprint = source if isinstance(source, Blueprint) else None
        task = None if source is None else source.task
        # Most tasks need no look before an update.
        self._looks = task is not None and (task.ema is not None or task.schedule is not None)
        self._is_shared = False  # whether all ranks see the same parameters
        self.updates = 0
        self.states: dict[str, Tensor] = {}
        """What the strategy remembers, by name."""
        self._twins = 0  # those that the program has asked for in this leg
        self._pieces: Pieces | None = None
        self.account: Account | None = None
        """What this rank's replica holds: see `paceline.replica.memory`."""
        self._states_account: Account | None = None
        if source is not None and not isinstance(source, Blueprint):
            self.hold(source)

    @abstractmethod
    def _make_pieces(self) -> Pieces: ...

    @property
    def pieces(self) -> Pieces:
        if self._pieces is None:
            self._pieces = self._make_pieces()
        return self._pieces

    def hold(self, replica: Replica) -> None:
        """Let this rank learn with a replica, or with another: one that has a part of the model only."""
        if self.account is None:
            self.account = replica.account_in(self._ctx.ledger)
        self._replica, self._blueprint = replica, None

    def begin_leg(self) -> None:
        self._twins = 0

    @property
    def source(self) -> Replica | Blueprint:
        """The replica, or what it would be made of."""
        return self.replica if self._blueprint is None else self._blueprint

    @property
    def replica(self) -> Replica:
        if self._blueprint is not None:
            self.hold(self._blueprint.build())
        if self._replica is None:
            raise ConfigurationError(
                "task", "is needed for batches, gradients and updates", None, "use pl.train"
            )
        return self._replica

    @property
    def data(self) -> TrainingData:
        return self._ctx.data

    @property
    def version(self) -> int:
        return self._ctx.begun

    @property
    def parameters(self) -> Tensor:
        return self.replica.parameters

    @property
    def gradient(self) -> Tensor:
        return self.replica.gradient

    @property
    def buffers(self) -> Sequence[Tensor]:
        return self.replica.buffers

    @property
    def moments(self) -> Sequence[Tensor]:
        return self.replica.moments()

    @property
    def clips(self) -> bool:
        return self.replica.task.clip_norm is not None

    def advance_schedule(self, updates: int) -> None:
        self.replica.advance_schedule(updates)

    def reset_optimizer(self) -> None:
        if self.replica.task.schedule is not None and self.replica.updates.of().waits_for_metric:
            remedy = "choose a schedule that goes by updates, or another strategy"
            bound = "must not need a metric where optimizers begin anew"
            raise ConfigurationError("schedule", bound, "ReduceLROnPlateau", remedy)
        self.replica.reset_optimizer()
        if self.account is not None:
            self.account.hold("optimizer", 0)

    def _look_before_update(self, shard: slice | None) -> None:
        """Step a schedule that goes by the metric, if there is a new one; see that a moving average sees all."""
        ctx, replica, every = self._ctx, self.replica, self._ctx.job.evaluate_every
        # The reporter announced it before it took part in this update, so that every rank knows it by now.
        if self.updates and every and self.updates % every == 0 and replica.updates.wait_for_metric:
            replica.updates.note_metric(ctx.announced)
        self.updates += 1
        parted = shard is not None and shard.stop - shard.start < replica.layout.length
        if parted and ctx.is_reporter and replica.task.ema is not None and not self._is_shared:
            bound = "must not be given where each server has a part of the parameters only"
            raise ConfigurationError("ema", bound, replica.task.ema, "use one server, or another strategy")

    def shards(self, parts: int) -> Sequence[slice]:
        return self.replica.shards(parts)

    def place(
        self,
        *,
        parameters: Tensor | Literal["lent"] | None = None,
        gradient: Tensor | Literal["lent"] | None = None,
    ) -> None:
        self._is_shared = isinstance(parameters, Tensor)
        self.replica.place(self._lent(self.parameters, parameters), self._lent(self.gradient, gradient))

    def _lent(self, present: Tensor, wanted: Tensor | Literal["lent"] | None) -> Tensor | None:
        """Where a tensor is to lie from now on. In most worlds there is no memory to lend: it stays where it is."""
        return None if isinstance(wanted, str) else wanted

    def release(self) -> None:
        self.replica.release()

    def reclaim(self) -> None:
        self.replica.reclaim()

    def state(self, name: str, *, like: Tensor, initial: Tensor | None = None) -> Tensor:
        kept = self.states.get(name)
        if kept is None or kept.shape != like.shape or kept.dtype != like.dtype:
            kept = self.states[name] = like.clone().zero_() if initial is None else initial.clone()
        if self._states_account is None:
            self._states_account = self._ctx.ledger.account()
        self._states_account.hold("buffers", sum(each.nbytes for each in self.states.values()))
        return kept

    def twin(self) -> R:
        self._twins += 1
        if self._twins <= len(self._ctx.twins):  # that of an earlier leg goes on
            return cast(R, self._ctx.twins[self._twins - 1])
        _ = self._ctx.rng  # one stream for both
        other = copy.copy(self._ctx)
        other.model = type(self)(other, self.replica.twin())
        other.net = self._ctx.net.seen_by(other)
        self._ctx.twins.append(other)
        if self._ctx.restored_twins:
            self._ctx.restored_twins[self._twins - 1](other)
        return other

    def note_loss(self, batch: Batch, loss: float) -> float:
        """Write down how a computation ended; refuse it if its loss or its gradient is not finite."""
        if not batch.count:
            return math.nan
        ctx, replica = self._ctx, self.replica
        if not math.isfinite(loss):
            raise LossNotFiniteError(ctx.rank, ctx.step, loss)
        if replica.not_finite is not None:
            raise GradientNotFiniteError(ctx.rank, ctx.step, replica.not_finite)
        ctx.outcome.losses.append((batch.step, loss, batch.count))
        if replica.logged:
            ctx.outcome.logged.append((ctx.step, batch.count, replica.logged))
        return loss

    def finish(self, mean: Tensor | None) -> dict[str, Any]:
        """The state of the model, or of the workers' mean if given; empty where there is no task."""
        return {} if self._ctx.job.task is None else self.replica.state(mean)
