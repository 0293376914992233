"""The gradient of a batch by one pass through the whole model, with parameters that hooks gather and free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from paceline.context import Batch
from paceline.context.passes import UnitEvent
from paceline.data.samples import Source
from paceline.model.activations import Activations, refuses_counting
from paceline.model.compiling import is_compiled
from paceline.model.engines.settings import Settings
from paceline.model.engines.whole_forward import WholeForward
from paceline.model.hooks.batch_norm import SharedStatistics, StatisticsEvent, filled
from paceline.model.hooks.module_hooks import ModuleHooks
from paceline.model.hooks.pass_thread import PassThread
from paceline.model.hooks.unit_tracker import UnitTracker
from paceline.model.loss_scale import scaled, weights
from paceline.model.memory import Account
from paceline.model.memory.computed import ActivationMeter

if TYPE_CHECKING:
    from paceline.model.engines.shard_store import ShardStore

PassEvent = UnitEvent | StatisticsEvent
Trained = tuple[Tensor, Sequence[Tensor] | None]


class HookedPass:
    """Passes through a whole module.

    The computation pauses at an event when units must be exchanged: see `UnitEvent`.
    """

    def __init__(
        self,
        settings: Settings,
        module: nn.Module,
        blocks: Sequence[str],
        forward: WholeForward,
        store: ShardStore,
        account: Account,
    ) -> None:
        """`blocks` are the names of the modules that announce their units when they are called."""
        parameters = list(module.parameters())  # from then on, reading the parameters announces their units
        self._is_compiled = is_compiled(module)
        self._forward = forward
        self._loss_scale = settings.loss_scale
        self._store = store
        self._frees = store.frees_parameters
        sizes = [len(unit.layout.names) for unit in store.units]
        numbers = [unit.group.number for unit in store.units]
        self._tracker = UnitTracker(numbers, sizes, frees_parameters=self._frees)
        self._hooks = ModuleHooks(
            module, blocks, store.places, store.storages(), self._tracker, self._take_gradient
        )
        self._weight = 1.0
        counting = self._counting if self._frees else Activations.counting
        self._meter = ActivationMeter(
            account,
            lambda: [store.parameters, *parameters, *module.buffers()],
            forward.recomputing,
            forward.undo_buffers,
            counting,
        )

    @property
    def logged(self) -> dict[str, float]:
        return self._forward.logged

    def begin(
        self, micros: Sequence[Batch], samples: Source, statistics: SharedStatistics | None = None
    ) -> PassThread[PassEvent]:
        """Begin the passes of a batch, given in micro-batches. Some may be empty.

        Workers share `statistics` in these passes, if given. An empty slice then takes part with a weight of 0.
        """
        self._forward.begin()
        return PassThread(partial(self._compute_all, micros, samples, statistics), eager=self._is_compiled)

    def _compute_all(
        self,
        micros: Sequence[Batch],
        samples: Source,
        statistics: SharedStatistics | None,
        park: Callable[[PassEvent], None],
    ) -> Iterator[float]:
        """Compute the gradients of all micro-batches. Yield the loss of each that is not empty."""
        count = sum(micro.count for micro in micros)
        try:
            for number, micro in enumerate(micros):
                self._tracker.begin(park)
                share = micro.count / (count or 1)
                if statistics is not None:
                    with statistics.sharing(park, micro.weight):
                        loss = self._compute(filled(micro), samples, share, number)
                elif micro.count:
                    loss = self._compute(micro, samples, share, number)
                if micro.count:
                    yield loss
                self._tracker.end()
        finally:
            self._tracker.abandon()

    def _compute(self, micro: Batch, samples: Source, share: float, number: int) -> float:
        of_loss, self._weight = weights(micro.weight, self._loss_scale)
        forward = partial(self._run_forward, partial(self._forward.loss, micro, samples, share, number))
        loss, trained = self._meter.forward(micro.count, forward)
        loss.register_hook(lambda _: self._tracker.note_backward())  # type: ignore[no-untyped-call]
        self._tracker.begin_backward()
        try:
            with self._saving():
                scaled(loss, of_loss).backward(inputs=trained)  # type: ignore[no-untyped-call]
        finally:
            self._meter.end_backward(micro.count)
        return loss.item()

    def _run_forward(self, run: Callable[[], Trained]) -> Trained:
        if self._hooks.always:
            self._tracker.use(self._hooks.always)
        try:
            with self._saving():
                return run()
        except RuntimeError as error:
            if not refuses_counting(error) or not self._frees or self._tracker.keeps_all:
                raise
        # Functions of torch.func cannot save tensors with hooks. So units stay in memory until the end of the
        # backward pass.
        self._tracker.keeps_all = True
        self._tracker.begin_again()
        self._forward.undo_buffers()
        return run()

    @contextmanager
    def _saving(self) -> Iterator[None]:
        if self._frees and not self._tracker.keeps_all:
            with self._hooks.saving():
                yield
        else:
            yield

    @contextmanager
    def _counting(self, counted: Activations) -> Iterator[None]:
        """Count activations in the existing hooks of saved tensors, because torch calls only the innermost hooks."""
        self._hooks.counted = counted
        try:
            yield
        finally:
            self._hooks.counted = None

    def _take_gradient(self, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None or not self._tracker.is_active:
            return
        if self._weight != 1.0:
            gradient = gradient * self._weight if gradient.is_sparse else gradient.mul_(self._weight)
        self._store.take([parameter], [gradient])
        self._tracker.take_gradient(self._store.places[id(parameter)])
