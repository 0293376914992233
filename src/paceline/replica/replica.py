"""One rank's copy of the model: flat parameters, flat gradients, updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paceline.chance import drawing, kept, part_seed, rank_seed, seed_all
from paceline.context import Batch
from paceline.errors import RunError
from paceline.replica.accounting import Accounting
from paceline.replica.autocast import Autocast, computing
from paceline.replica.binding import Binding
from paceline.replica.buckets import Buckets
from paceline.replica.buffers import FlatBuffers
from paceline.replica.calls import loss_of
from paceline.replica.compiling import compiled, is_compiled
from paceline.replica.devices import Accelerator, enter, move_module, with_loss_on
from paceline.replica.evaluation import evaluate, parts_of
from paceline.replica.finite import check_updated
from paceline.replica.gradients import FlatGradient, hand_to_nobody
from paceline.replica.layout import Layout, blank, flatten
from paceline.replica.memory import Account, Ledger
from paceline.replica.optimizers import Updates, all_work_elementwise
from paceline.replica.recomputing import Recomputing
from paceline.replica.samples import Samples, Source
from paceline.replica.steps import UserStep, micro_batches
from paceline.task import Task

__all__ = ["Replica"]


class Replica:
    """A module whose trainable parameters are one flat tensor (see `Binding`), and their gradients another."""

    _released_bytes = 0

    def __init__(
        self,
        task: Task,
        module: nn.Module,
        *,
        seed: int = 0,
        rank: int = 0,
        autocast: tuple[Autocast, ...] = (),
        device: torch.device | None = None,
        is_bare: bool = False,
    ) -> None:
        """With a `device` the module is moved there; otherwise it stays where it is.

        A bare one has no memory of its own yet: its module's parameters lie where they lay. A replica that shares them
        with other ranks takes its place, and copies no more than it keeps.
        """
        if device is not None:
            enter(device)
            move_module(module, device)
            task = with_loss_on(device, task)
        self.task = task
        self.module = module
        self._compiled: Any = None
        self.identity: dict[str, Any] = {"seed": seed, "rank": rank, "autocast": autocast}
        self._autocast = autocast
        self._seed = rank_seed(seed, rank)
        trainable = [p for p in module.parameters() if p.requires_grad]
        self.layout = Layout.of(module)
        self.device = trainable[0].device if trainable else torch.device("cpu")
        self.is_bare = is_bare
        self.parameters = (
            blank(self.layout.length, self.layout.dtype, self.device)
            if is_bare
            else flatten(trainable, self.layout.dtype, self.device)
        )
        self._accelerator = Accelerator.of(self.device)
        self.device_s = 0.0
        """What the device took for the last gradient. 0: it is the processor."""
        self._binding = Binding(self.layout, trainable, self.device)
        if not is_bare:
            self._binding.hold(self.parameters)
        # A hook of a layer would make torch compile again.
        watches = not task.compile and not is_compiled(module)
        self._gradient = FlatGradient(module, trainable, self.layout, watches_layers=watches)
        self._gradient.hold(self.parameters if is_bare else torch.zeros_like(self.parameters))
        self._buffers = FlatBuffers(module)
        self._buffers_before: list[Tensor] = []
        self.updates = Updates(task, module, self.layout, self._flats)
        self._user_step = UserStep(task, module, lambda: self.buffers) if task.step is not None else None
        self._computed: Batch | None = None
        self.logged: dict[str, float] = {}
        """What the user's step told of the last batch besides its loss."""
        self.recomputing = Recomputing(module, lambda: computing(autocast)) if task.recompute else None
        self._accounting = Accounting()
        self._accounting.hold_model(self)

    def twin(self) -> Replica:
        """Another replica of this rank, as this one was at first."""
        module = self.task.build_model(self.identity["seed"])
        return Replica(self.task, module, device=self.device, **self.identity)

    @property
    def whole(self) -> Replica | None:
        """The replica of the whole model, which is this one if it does not hold a part only. None: not on this rank."""
        return self

    @property
    def holds_all(self) -> bool:
        """Whether the optimizer's state here can be that of all parameters."""
        return self.whole is self

    @property
    def called(self) -> Any:
        """What is called with a batch: the module, or what is compiled of it."""
        if not self.task.compile:
            return self.module
        if self._compiled is None:
            self._compiled = compiled(self.module)
        return self._compiled

    # Memory

    def account_in(self, ledger: Ledger) -> Account:
        """Write into this ledger what is held here: from now on, and in the account that is returned."""
        self._accounting.account.move_to(ledger)
        return self._accounting.account

    def give_account(self) -> Account:
        """To a replica that takes the place of this one: what this one still holds is not counted any more."""
        account, self._accounting = self._accounting.account, Accounting()
        return account

    @property
    def gradient(self) -> Tensor:
        return self._gradient.flat

    def _flats(self, part: slice) -> tuple[Tensor, Tensor]:
        return self.parameters[part], self.gradient[part]

    @property
    def buffers(self) -> list[Tensor]:
        return self._buffers.flats()

    def place(self, parameters: Tensor | None = None, gradient: Tensor | None = None) -> None:
        """Let the flat tensors live in other memory. The parameters' values there count, not the present ones.

        Memory of the processor may serve a module on a device: it is copied there before each computation.
        """
        wanted = ((parameters, self.parameters), (gradient, self.gradient))
        if not any(new is not None and new.data_ptr() != old.data_ptr() for new, old in wanted):
            return  # they lie there since an earlier leg
        if self.updates.have_begun:
            raise RunError("a replica can be placed only before its first update")
        if parameters is not None:
            self.parameters = parameters
            self._binding.hold(parameters)
            if gradient is None and parameters.device != self.gradient.device:
                gradient = torch.zeros_like(parameters)  # an optimizer wants both on one device
        if gradient is not None:
            self._gradient.hold(gradient)
        self._accounting.hold_model(self)

    def release(self) -> None:
        """Give up the memory of the parameters, which nothing else may use: what they were is lost."""
        storage = self.parameters.untyped_storage()
        self._released_bytes = storage.nbytes()
        storage.resize_(0)
        self._accounting.account.free("parameters", self._released_bytes)

    def reclaim(self) -> None:
        """Have memory for the parameters again."""
        self.parameters.untyped_storage().resize_(self._released_bytes)
        self._accounting.account.add("parameters", self._released_bytes)

    @contextmanager
    def _holding(self, parameters: Tensor | None) -> Iterator[None]:
        """Let the module hold other parameters for a while; or its own, as they are now."""
        if parameters is None:
            self._binding.refresh()
            yield
            return
        self._binding.hold(parameters)
        try:
            yield
        finally:
            self._binding.hold(self.parameters)

    # Gradients

    @property
    def not_finite(self) -> str | None:
        """The parameter whose last gradient has a value that is NaN or infinite: it must not be used."""
        return self._gradient.not_finite

    @property
    def buckets(self) -> Buckets:
        return self._gradient.buckets

    def set_bucket_bytes(self, bucket_bytes: int) -> None:
        """Cut the gradient into buckets of about this size from now on."""
        if bucket_bytes != self._gradient.buckets.bucket_bytes:
            self._gradient.buckets = Buckets(self.layout, bucket_bytes)

    def bucket(self, number: int) -> Tensor:
        gradient = self._gradient
        return gradient.flat[gradient.buckets.place(number)]

    def compute(
        self,
        batch: Batch,
        samples: Source,
        on_bucket: Callable[[int], None] = hand_to_nobody,
        checkpoint: Callable[[], None] | None = None,
        *,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> float:
        """Fill `gradient` with the batch's mean gradient times a weight, or add that to it; return the mean loss.

        `on_bucket` is called with each bucket's number as it becomes ready, unless a value in it is not finite: then
        `not_finite` names the parameter. `checkpoint` is called before each layer (unless they are compiled) and
        after each parameter's gradient, and may raise to abandon the computation; the replica stays usable.
        """
        if self._accelerator is not None:
            self._accelerator.begin()
        self._binding.refresh()
        self._buffers_before = [buffer.clone() for buffer in self.buffers]
        self._accounting.hold_buffers(self.buffers, self._buffers_before)
        self._computed, self.logged = batch, {}
        gradient = self._gradient
        gradient.begin(on_bucket, checkpoint, accumulate=accumulate)
        try:
            with drawing():
                loss = self._compute_parts(batch, samples, weight) if batch.count else 0.0
        except BaseException:
            gradient.abandon()
            raise
        finally:
            gradient.end()
        gradient.finish_unused()
        if self._accelerator is not None:
            self.device_s = self._accelerator.end()
        return loss

    def undo_buffers(self) -> None:
        """Put BatchNorm's statistics and the like back to what they were: the last batch was cancelled."""
        for buffer, before in zip(self.buffers, self._buffers_before, strict=True):
            buffer.copy_(before)

    def _compute_parts(self, batch: Batch, samples: Source, weight: float) -> float:
        """The gradient of a batch that is not empty, in as many parts as the task says; the mean loss."""
        parts, loss = micro_batches(batch, self.task.accumulate), 0.0
        if len(parts) > 1:
            self._gradient.begin_parts()
        for number, part in enumerate(parts):
            share = part.count / batch.count
            self._gradient.begin_part(weight * share, is_last=part is parts[-1])
            forward = partial(self._forward, part, samples, share, number)
            value, trained = self._accounting.forward(self, part.count, forward)
            try:
                value.backward(inputs=trained)  # type: ignore[no-untyped-call]
            finally:
                self._accounting.end_backward(self, part.count)
            loss += share * value.item()
        return loss

    def fetch(self, batch: Batch, samples: Source, part: int = 0) -> Any:
        """The samples of a batch, or of a part of one, on this replica's device.

        What the model draws next (for dropout, say) is set by rank, step and part, whoever fetched them: it is the same
        in every world. Where models take turns, the turns of one global batch draw the same.
        """
        content = samples.content(batch, part_seed(self._seed, batch.step, part))
        self.seed_part(batch, part)
        return content if self._accelerator is None else self._accelerator.take(content)

    def seed_part(self, batch: Batch, part: int = 0) -> None:
        """Set what the model draws next."""
        turn = batch.step // (len(self.task.turns) or 1)
        seed = part_seed(self._seed, turn, part)
        seed_all(seed)
        if self._accelerator is not None:
            self._accelerator.seed(seed)

    def _forward(
        self, batch: Batch, samples: Source, share: float, part: int
    ) -> tuple[Tensor, Sequence[Tensor] | None]:
        """The loss, and the parameters that it trains: None is all."""
        content = self.fetch(batch, samples, part)
        if not self.module.training:
            self.module.train()
        with computing(self._autocast), self._leaving_little():
            if self._user_step is None:
                return loss_of(self.task, self.called, content), None
            made = self._user_step.loss(self.called, batch, content)
        for name, value in made.logged.items():
            self.logged[name] = self.logged.get(name, 0.0) + share * value
        return made.value, made.trained

    def _leaving_little(self) -> AbstractContextManager[None]:
        return nullcontext() if self.recomputing is None else self.recomputing.forward()

    # Updates

    def apply(
        self,
        shard: slice | None = None,
        norm: float | None = None,
        *,
        advance: bool = True,
        of: Sequence[Batch] = (),
        step: int = 0,
    ) -> None:
        """One step of the task's optimizer on a shard of the parameters; on all of them by default.

        `of` are the batches whose gradients make it up: by default the one that was last computed here, or, where none
        was, one of the run's step number `step`.
        """
        if not of and self._computed is not None:
            of = (self._computed,)
        if self._accelerator is not None:
            self._accelerator.begin()
        self.updates.of(shard).step(norm, advance=advance, shares=self.updates.shares(of, step))
        self._accounting.note_update(self.updates, len(self.task.turns))
        if self._accelerator is not None:
            self._accelerator.end()

    def advance_schedule(self, updates: int) -> None:
        """Move the learning-rate schedule on by updates that were not made here."""
        self.updates.of().advance_schedule(updates)

    def reset_optimizer(self) -> None:
        """Forget momentum and the like, and begin the learning-rate schedule anew."""
        self.updates.forget()
        self._accounting.forget_optimizer()

    def moments(self) -> Sequence[Tensor]:
        """What the optimizer remembers of each parameter (momentum, say), in an order that is the same everywhere."""
        return self.updates.of().moments()

    def shards(self, parts: int) -> Sequence[slice]:
        if all_work_elementwise(self.task, self.module) and not self.layout.within:
            return self.layout.even_shards(parts)
        return self.layout.whole_shards(parts)

    # Evaluation

    def evaluate(self, samples: Samples, parameters: Tensor | None = None) -> dict[str, float]:
        """The metrics over all samples, with the module in evaluation mode; of other parameters if given."""
        with self._looked_at(parameters):
            return evaluate(self.task, self.called, samples, self.device, self._seed_test)

    def evaluate_parts(self, samples: Samples, numbers: Sequence[int]) -> Tensor:
        """What the test batches of these numbers add to each metric: see `parts_of`."""
        with self._looked_at(None):
            return parts_of(self.task, self.called, samples, numbers, self.device, self._seed_test)

    @contextmanager
    def _looked_at(self, parameters: Tensor | None) -> Iterator[None]:
        """While it is evaluated. What is drawn meanwhile is not missed afterwards, by an optimizer say."""
        with self._holding(parameters), computing(self._autocast), drawing(), kept():
            yield

    def _seed_test(self, number: int) -> None:
        """Every evaluation draws the same for a test batch, whichever rank looks at it."""
        seed = part_seed(self.identity["seed"], 0, number)
        seed_all(seed)
        if self._accelerator is not None:
            self._accelerator.seed(seed)

    def state(self, parameters: Tensor | None = None) -> dict[str, Tensor]:
        """A copy of the module's state, apart from any shared memory; with other parameters if given."""
        check_updated(self.layout, self.parameters if parameters is None else parameters)
        with self._holding(parameters):
            state = self.module.state_dict()
            return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
