"""The learning part of a context that is the same in every cluster. A cluster adds the computation."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar, cast

from torch import Tensor

from paceline.clusters.rank.loss_scaling import check_loss_scale
from paceline.clusters.rank.member import Member
from paceline.clusters.rank.rank import Rank
from paceline.clusters.rank.statistics import StatisticsExchange
from paceline.collectives import all_reduce
from paceline.context import Batch, Context, Net, ParameterPlace, Stages
from paceline.errors import ConfigurationError, GradientNotFiniteError, LossNotFiniteError
from paceline.model.memory import Account
from paceline.model.replica import Replica

R = TypeVar("R", bound=Rank)


class Learner(ABC, Generic[R]):
    """A rank's replica of the model. Its subclasses satisfy `paceline.context.Model`."""

    __slots__ = (
        "_clips",
        "_ctx",
        "_is_shared",
        "_lends_parameters",
        "_looks",
        "_replica",
        "_stages",
        "_states_account",
        "_statistics",
        "_twins",
        "resumed_metric",
        "states",
        "updates",
    )

    def __init__(self, ctx: R, replica: Replica | None) -> None:
        """Create a learner. `replica` is None if the run has no task."""
        self._ctx = ctx
        self._replica = replica
        task = None if replica is None else replica.task
        # Most tasks need no check before an update.
        self._looks = task is not None and (task.ema is not None or task.schedule is not None)
        self._clips = task is not None and task.clip_norm is not None
        self._is_shared = False  # whether all ranks share the same parameters
        self._lends_parameters = False  # whether messages may read them in place
        self.updates = 0
        self.resumed_metric: float | None = None
        """Metric that the reporter had announced last before the run resumed, until the first update."""
        self.states: dict[str, Tensor] = {}
        """State of the strategy, by name."""
        self._twins = 0  # twins that the program has requested in this generation
        self._stages: Stages | None = None
        self._states_account: Account | None = None
        self._statistics: StatisticsExchange | None = None
        if replica is not None:
            few = lambda: ctx.data.few()  # noqa: E731, PLW0108 (the data are created on first use)
            replica.attach(ctx.ledger, few)
            if replica.loss_scale is not None:
                replica.loss_scale.keep_in(self.states)

    @abstractmethod
    def _make_stages(self) -> Stages: ...

    @property
    def stages(self) -> Stages:
        if self._stages is None:
            self._stages = self._make_stages()
        return self._stages

    def hold(self, replica: Replica) -> None:
        """Use a replica from now on. It may hold only a part of the model."""
        self._replica = replica
        self._statistics = None

    def begin_generation(self) -> None:
        self._twins = 0
        self._statistics = None

    @property
    def statistics(self) -> StatisticsExchange | None:
        """BatchNorm statistics that workers share; None if each normalises by its own slice."""
        if self._statistics is None and self.replica.task.sync_batch_norm:
            self._statistics = StatisticsExchange(self._ctx, self.replica)
        return self._statistics

    @property
    def replica(self) -> Replica:
        if self._replica is None:
            raise ConfigurationError(
                "task", "is needed for batches, gradients and updates", None, "use pl.train"
            )
        return self._replica

    @property
    def version(self) -> int:
        return self._ctx.begun

    @property
    def parameters(self) -> Tensor:
        return self.replica.parameters

    @property
    def places(self) -> Mapping[str, ParameterPlace]:
        slices, layout = self.replica.holding.places, self.replica.layout
        return {
            name: ParameterPlace(slices[name], shape)
            for name, shape in zip(layout.names, layout.real_shapes, strict=True)
        }

    @property
    def gradient(self) -> Tensor:
        return self.replica.gradient

    @property
    def gradient_codec(self) -> str:
        return "none" if self.replica.task.precision == "fp32" else "bf16"

    @property
    def buffers(self) -> Sequence[Tensor]:
        return self.replica.buffers

    @property
    def moments(self) -> Sequence[Tensor]:
        return self.replica.moments()

    def advance_schedule(self, updates: int, *, restart: bool = False) -> None:
        if restart:
            self._reset_optimizer()
        self.replica.advance_schedule(updates)

    def _reset_optimizer(self) -> None:
        if self.replica.task.schedule is not None and self.replica.updates.of().waits_for_metric:
            remedy = "choose a schedule that goes by updates, or another strategy"
            bound = "must not need a metric with optimizers that are created again in each round"
            raise ConfigurationError("schedule", bound, "ReduceLROnPlateau", remedy)
        self.replica.reset_optimizer()

    def _look_before_update(self, shard: slice | None) -> None:
        """Step a schedule that depends on the metric. Refuse a moving average if this rank has only a part."""
        ctx, replica, every = self._ctx, self.replica, self._ctx.job.evaluate_every
        if ctx.job.declared.steps_ahead(ctx.job.workers):
            ctx.log.evaluations.refuse_plateaus()
        resumed, self.resumed_metric = self.resumed_metric, None
        # The reporter announced the metric before it took part in this update, so every rank has it by now. It may
        # already have announced the next one, if this rank is slow.
        if self.updates and every and self.updates % every == 0 and replica.updates.wait_for_metric:
            replica.updates.of(shard)  # maybe not used yet since it was restored
            replica.updates.note_metric(ctx.announced(self.updates // every) if resumed is None else resumed)
        self.updates += 1
        parted = shard is not None and shard.stop - shard.start < replica.layout.length
        if parted and ctx.is_reporter and replica.task.ema is not None and not self._is_shared:
            bound = "must not be given where each server has a part of the parameters only"
            raise ConfigurationError("ema", bound, replica.task.ema, "use one server, or another strategy")

    async def _norm(self, norm: Callable[[], Awaitable[float]] | None) -> float | None:
        """Return the norm of the whole gradient, if this rank has a part of it and the update needs the norm."""
        needed = self._clips or self.replica.loss_scale is not None
        return await norm() if norm is not None and needed else None

    async def _layer_squares(
        self, shard: slice | None, norm: float | None, of: Sequence[Batch], split: Sequence[Net]
    ) -> Tensor | None:
        """Return the squared norms of whole layers, summed over ranks. None if no optimizer needs them."""
        squares = self.replica.layer_squares(shard, norm, of=of, step=self._ctx.step)
        if squares is not None and squares.numel():
            flat = squares.view(-1)
            for net in split:
                await all_reduce(net, flat, "ring")
        return squares

    def shards(self, parts: int) -> Sequence[slice]:
        return self.replica.shards(parts)

    def place(
        self,
        *,
        parameters: Tensor | Literal["lent"] | None = None,
        gradient: Tensor | Literal["lent"] | None = None,
    ) -> None:
        self._is_shared = isinstance(parameters, Tensor)
        self._lends_parameters = isinstance(parameters, str)
        self.replica.place(self._lent(self.parameters, parameters), self._lent(self.gradient, gradient))

    def _lent(self, present: Tensor, wanted: Tensor | Literal["lent"] | None) -> Tensor | None:
        """Return the new memory of a tensor. None keeps the current memory. Most clusters have no memory to lend."""
        return None if isinstance(wanted, str) else wanted

    @contextmanager
    def released(self) -> Iterator[None]:
        self.replica.release()
        try:
            yield
        finally:
            self.replica.reclaim()

    def state(self, name: str, *, like: Tensor, initial: Tensor | None = None) -> Tensor:
        kept = self.states.get(name)
        if kept is None or kept.shape != like.shape or kept.dtype != like.dtype:
            kept = self.states[name] = like.clone().zero_() if initial is None else initial.clone()
        if self._states_account is None:
            self._states_account = self._ctx.ledger.account()
        self._states_account.hold("buffers", sum(each.nbytes for each in self.states.values()))
        return kept

    def twin(self) -> Context:
        self._twins += 1
        members = self._ctx.members
        made = self._find_twin()
        return cast(Context, made if members is None else Member(made, members))

    def _find_twin(self) -> R:
        if self._twins <= len(self._ctx.twins):  # continue with the twin of an earlier generation
            return cast(R, self._ctx.twins[self._twins - 1])
        _ = self._ctx.rng  # both use one random stream
        other = copy.copy(self._ctx)
        replica = self._replica_of_twin()
        replica.build()
        other.model = type(self)(other, replica)
        other.net = self._ctx.net.seen_by(other)
        self._ctx.twins.append(other)
        if self._ctx.restored_twins:
            self._ctx.restored_twins[self._twins - 1](other)
        return other

    def _replica_of_twin(self) -> Replica:
        return self.replica.twin()

    def note_loss(self, batch: Batch, loss: float | None) -> float:
        """Record the loss of a batch; None if it was not computed.

        Raise an error if loss or gradient is not finite.
        """
        if loss is None:
            self._ctx.outcome.losses.append((batch.step, math.nan, batch.count))
            return math.nan
        if not batch.count:
            return math.nan
        ctx, replica = self._ctx, self.replica
        if not math.isfinite(loss):
            raise LossNotFiniteError(ctx.rank, ctx.step, loss, replica.loss_cause)
        if replica.not_finite is not None:
            raise GradientNotFiniteError(ctx.rank, ctx.step, replica.not_finite)
        check_loss_scale(ctx, replica)
        ctx.outcome.losses.append((batch.step, loss, batch.count))
        if replica.logged:
            ctx.outcome.logged.append((ctx.step, batch.count, replica.logged))
        if ctx.job.regroups:  # told before the gradient is sent: the rank may die later
            ctx.tell_news()
        return loss

    def finish(self, mean: Tensor | None) -> dict[str, Any]:
        """Return the state of the model, or of the workers' mean if given. Empty if there is no task."""
        return {} if self._ctx.job.task is None else self.replica.inspection.state(mean)
