"""The cut of a rank's model, and the part of it that the rank holds. The same in every cluster."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from paceline.clusters.rank.holding import what_is_held
from paceline.clusters.rank.learner import Learner
from paceline.clusters.rank.rank import Rank
from paceline.context import Hooks, Segment
from paceline.errors import ConfigurationError
from paceline.model.cutting.cut import Cut
from paceline.model.cutting.layers import Layers, TrialSamples
from paceline.model.holding import Sharding
from paceline.model.hooks.blocks import BlockLayers
from paceline.model.replica import Replica

R = TypeVar("R", bound=Rank)
T = TypeVar("T")


class ModelCut(ABC, Generic[R]):
    """The segments of a model, and those that this rank holds."""

    __slots__ = ("_ctx", "_cut", "_held", "_layers", "_learner", "_position")

    def __init__(self, ctx: R, learner: Learner[Any]) -> None:
        self._ctx = ctx
        self._learner = learner
        self._layers: dict[tuple[int, bool, Hooks, int], Layers | BlockLayers] = {}
        """Cached by size of the tensor group, by whether it splits sequences, by whether hooks replace segments, and
        by the parts of a batch."""
        self._position = 0  # in the tensor group
        self._held: tuple[int, ...] | None = None
        self._cut: Cut | None = None

    @property
    def segments(self) -> Sequence[Segment]:
        return self._of_cut().segments

    def cut(
        self,
        stages: int,
        cuts: Sequence[str] = (),
        *,
        chunks: int = 1,
        fewer: bool = False,
        finer: int = 1,
        tensor: int = 1,
        sequence: bool = False,
        hooks: Hooks = "never",
        passes: int = 1,
    ) -> Sequence[Segment]:
        layers = self._off_the_clock(lambda: self._found_layers(tensor, sequence, hooks, passes))
        count = min(stages, max(1, layers.most // chunks)) if fewer else stages
        # Tensor groups reduce values twice in each block, so their segments need no further cuts.
        recomputes = self._learner.replica.task.recompute and finer == tensor == 1
        segments = None if recomputes else finer
        self._cut = self._off_the_clock(lambda: layers.cut(count * chunks, cuts, finer=segments))
        return self._cut.segments

    def _hold(
        self,
        segments: Sequence[int],
        worker: int,
        position: int,
        shared_by: int | None,
        frees_parameters: bool,
    ) -> None:
        cut, learner = self._of_cut().at(position), self._learner
        in_part = len(segments) < len(cut.segments) or cut.shares is not None
        if frees_parameters and in_part and learner.replica.task.ema is not None:
            remedy = (
                "leave it out, or use zero:stage=3, or shard optimizer state and gradients only (stage 2)"
            )
            bound = "must not be given where ranks free parameters of a part of the model"
            raise ConfigurationError("ema", bound, learner.replica.task.ema, remedy)
        shard = None if shared_by is None else (worker, shared_by)
        self._ctx.note_holds(what_is_held(cut, segments, shard=shard))
        self._position = position
        if not self._is_held(segments):
            sharding = None if shared_by is None else Sharding(shared_by, worker, frees_parameters)
            learner.hold(self._off_the_clock(lambda: self._narrowed(cut, segments, worker, sharding)))

    def _narrowed(self, cut: Cut, segments: Sequence[int], worker: int, sharding: Sharding | None) -> Replica:
        """Return the replica of these segments."""
        replica = self._learner.replica
        if sharding is not None and len(segments) == len(cut.segments) and cut.shares is None:
            # A sharded replica can gather the whole model, so the reporter needs no copy of it.
            return replica.sharded(cut, sharding)
        keeps_whole = self._ctx.is_reporter
        if keeps_whole:  # other ranks only build their part
            replica.build()
        if sharding is None:
            return replica.part(cut, segments, worker=worker, keeps_whole=keeps_whole)
        return replica.sharded(cut, sharding, segments, worker=worker, keeps_whole=keeps_whole)

    def _is_held(self, segments: Sequence[int]) -> bool:
        """Return whether this rank has held these segments since an earlier generation."""
        if self._held is None:
            self._held = tuple(segments)
            return False
        assert self._held == tuple(segments), "a rank holds the same segments in every generation"
        return True

    def _off_the_clock(self, work: Callable[[], T]) -> T:
        """Do work that is excluded from the run's clock. Tracing a model takes a second or more, once."""
        start_s = self._ctx.now()
        made = work()
        if self._ctx.now() > start_s:
            self._ctx.log.evaluations.leave_out(start_s)
        return made

    def _of_cut(self) -> Cut:
        assert self._cut is not None, "cut comes first"
        return self._cut

    def _found_layers(self, tensor: int, sequence: bool, hooks: Hooks, passes: int) -> Layers | BlockLayers:
        key = tensor, sequence, hooks, passes
        if key not in self._layers:
            self._layers[key] = self._find_layers(*key)
        return self._layers[key]

    def _find_layers(self, tensor: int, sequence: bool, hooks: Hooks, passes: int) -> Layers | BlockLayers:
        data = self._ctx.data
        samples = TrialSamples(data.few, lambda: data.one_pass(passes))
        return self._learner.replica.layers(samples, tensor=tensor, sequence=sequence, hooks=hooks)

    def _part(self) -> Replica:
        assert self._held is not None, "hold comes first"
        return self._learner.replica
