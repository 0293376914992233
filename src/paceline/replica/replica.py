"""One rank's copy of the model: flat parameters, flat gradients, buckets as they become ready, updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from paceline.chance import rank_seed, seed_all
from paceline.context import BUCKET_BYTES, Batch
from paceline.errors import RunError
from paceline.replica.autocast import Autocast, computing
from paceline.replica.buffers import FlatBuffers
from paceline.replica.calls import loss_of
from paceline.replica.evaluation import evaluate
from paceline.replica.finite import is_finite, last_not_finite
from paceline.replica.layout import Layout, flatten
from paceline.replica.optimizers import Updates, all_work_elementwise
from paceline.replica.samples import Samples, Source
from paceline.replica.steps import UserStep, micro_batches
from paceline.task import Task

__all__ = ["Replica"]


def _nothing(_bucket: int) -> None:
    pass


_PARTS_APART = 2_654_435_769
"""What the seeds of a batch's parts differ by: in the low 32 bits, for torch's generator of the CPU takes no others."""


class Replica:
    """A module whose trainable parameters are views of one flat tensor, and its gradients of another."""

    _bucket_bytes = _released_bytes = 0

    def __init__(
        self,
        task: Task,
        module: nn.Module,
        *,
        seed: int = 0,
        rank: int = 0,
        autocast: tuple[Autocast, ...] = (),
    ) -> None:
        self.task = task
        self.module = module
        self._identity: dict[str, Any] = {"seed": seed, "rank": rank, "autocast": autocast}
        self._autocast = autocast
        self._seed = rank_seed(seed, rank)
        self._trainable = [p for p in module.parameters() if p.requires_grad]
        self.layout = Layout.of(module)
        device = self._trainable[0].device
        self.parameters = flatten(self._trainable, self.layout.dtype, device)
        self.gradient = torch.zeros_like(self.parameters)
        self._buffers = FlatBuffers(module)
        self._buffers_before: list[Tensor] = []
        self.updates = Updates(task, module, self.layout, lambda: (self.parameters, self.gradient))
        self._user_step = UserStep(task, module, lambda: self.buffers) if task.step is not None else None
        self._computed: Batch | None = None
        self.logged: dict[str, float] = {}
        """What the user's step told of the last batch besides its loss."""
        self._bind_parameters()
        self.set_bucket_bytes(BUCKET_BYTES)
        self._on_bucket: Callable[[int], None] = _nothing
        self._checkpoint: Callable[[], None] | None = None
        self._weight, self._accumulates, self._is_last_part = 1.0, False, True
        self._waiting: list[int] = []
        self._fired = bytearray(len(self._trainable))
        self.not_finite: str | None = None
        """The parameter whose last gradient has a value that is NaN or infinite: it must not be used."""
        for i, parameter in enumerate(self._trainable):
            parameter.register_post_accumulate_grad_hook(self._gradient_hook(i))  # type: ignore[no-untyped-call]

    def twin(self) -> Replica:
        """Another replica of this rank, as this one was at first."""
        return Replica(self.task, self.task.build_model(self._identity["seed"]), **self._identity)

    # Memory

    @property
    def buffers(self) -> list[Tensor]:
        return self._buffers.flats()

    def place(self, parameters: Tensor | None = None, gradient: Tensor | None = None) -> None:
        """Let the flat tensors live in other memory. The parameters' values there count, not the present ones."""
        if self.updates.have_begun:
            raise RunError("a replica can be placed only before its first update")
        if parameters is not None:
            self.parameters = parameters
        if gradient is not None:
            self.gradient = gradient
        self._bind_parameters()

    def release(self) -> None:
        """Give up the memory of the parameters, which nothing else may use: what they were is lost."""
        storage = self.parameters.untyped_storage()
        self._released_bytes = storage.nbytes()
        storage.resize_(0)

    def reclaim(self) -> None:
        """Have memory for the parameters again."""
        self.parameters.untyped_storage().resize_(self._released_bytes)

    def _bind_parameters(self) -> None:
        self._bind_module(self.parameters)
        self._gradient_views = self.layout.views(self.gradient)

    def _bind_module(self, parameters: Tensor) -> None:
        for parameter, view in zip(self._trainable, self.layout.views(parameters), strict=True):
            parameter.data = view

    @contextmanager
    def _holding(self, parameters: Tensor | None) -> Iterator[None]:
        """Let the module hold other parameters for a while."""
        if parameters is None:
            yield
            return
        self._bind_module(parameters)
        try:
            yield
        finally:
            self._bind_module(self.parameters)

    def set_bucket_bytes(self, bucket_bytes: int) -> None:
        """Cut the gradient into buckets of about this size from now on."""
        if bucket_bytes != self._bucket_bytes:
            self._bucket_bytes = bucket_bytes
            self._buckets = self.layout.buckets(bucket_bytes)
            self._bucket_of = {i: b for b, run in enumerate(self._buckets) for i in run}

    def bucket(self, number: int) -> Tensor:
        run = self._buckets[number]
        return self.gradient[self.layout.offsets[run.start] : self.layout.offsets[run.stop]]

    def bucket_order(self) -> range:
        """Backward reaches the last parameters first, so the last bucket is handed over first."""
        return range(len(self._buckets) - 1, -1, -1)

    def bucket_shares(self) -> list[float]:
        """Each bucket's share of all parameters, in the order in which the buckets are handed over."""
        offsets = self.layout.offsets
        sizes = [
            offsets[self._buckets[b].stop] - offsets[self._buckets[b].start] for b in self.bucket_order()
        ]
        return [size / self.layout.length for size in sizes]

    # Gradients

    def compute(
        self,
        batch: Batch,
        samples: Source,
        on_bucket: Callable[[int], None] = _nothing,
        checkpoint: Callable[[], None] | None = None,
        *,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> float:
        """Fill `gradient` with the batch's mean gradient times a weight, or add that to it; return the mean loss.

        `on_bucket` is called with each bucket's number as it becomes ready, unless a value in it is not finite: then
        `not_finite` names the parameter. `checkpoint` is called before each layer and after each parameter's gradient,
        and may raise to abandon the computation; the replica stays usable.
        """
        self.not_finite = None
        self._buffers_before = [buffer.clone() for buffer in self.buffers]
        self._on_bucket, self._checkpoint = on_bucket, checkpoint
        self._accumulates = accumulate
        self._waiting = [len(run) for run in self._buckets]
        self._fired = bytearray(len(self._trainable))
        self._computed, self.logged = batch, {}
        if checkpoint is not None:
            self._watch_layers()
        try:
            loss = self._compute_parts(batch, samples, weight) if batch.count else 0.0
        except BaseException:
            for parameter in self._trainable:
                parameter.grad = None
            raise
        finally:
            self._checkpoint = None
        self._finish_unused()
        return loss

    def undo_buffers(self) -> None:
        """Put BatchNorm's statistics and the like back to what they were: the last batch was cancelled."""
        for buffer, before in zip(self.buffers, self._buffers_before, strict=True):
            buffer.copy_(before)

    def _compute_parts(self, batch: Batch, samples: Source, weight: float) -> float:
        """The gradient of a batch that is not empty, in as many parts as the task says; the mean loss."""
        parts, loss = micro_batches(batch, self.task.accumulate), 0.0
        if len(parts) > 1 and not self._accumulates:
            self.gradient.zero_()
            self._accumulates = True
        for number, part in enumerate(parts):
            share = part.count / batch.count
            self._weight, self._is_last_part = weight * share, part is parts[-1]
            self._fired = bytearray(len(self._trainable))
            loss += share * self._backward(*self._forward(part, samples, share, number))
        return loss

    def fetch(self, batch: Batch, samples: Source, part: int = 0) -> Any:
        """The samples of a batch, or of a part of one.

        What the model draws next (for dropout, say) is set by rank, step and part, whoever fetched them: it is the same
        in every world. Where models take turns, the turns of one global batch draw the same.
        """
        apart, turn = part * _PARTS_APART, batch.step // (len(self.task.turns) or 1)
        content = samples.content(batch, (self._seed + batch.step + apart) % 2**63)
        torch.default_generator.manual_seed((self._seed + turn + apart) % 2**63)
        return content

    def _forward(
        self, batch: Batch, samples: Source, share: float, part: int
    ) -> tuple[Tensor, Sequence[Tensor] | None]:
        """The loss, and the parameters that it trains: None is all."""
        content = self.fetch(batch, samples, part)
        if not self.module.training:
            self.module.train()
        with computing(self._autocast):
            if self._user_step is None:
                return loss_of(self.task, self.module, content), None
            made = self._user_step.loss(batch, content)
        for name, value in made.logged.items():
            self.logged[name] = self.logged.get(name, 0.0) + share * value
        return made.value, made.trained

    def _backward(self, loss: Tensor, trained: Sequence[Tensor] | None) -> float:
        loss.backward(inputs=trained)  # type: ignore[no-untyped-call]
        return loss.item()

    def _gradient_hook(self, number: int) -> Callable[[Tensor], None]:
        def take(parameter: Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None
            parameter.grad = None
            if gradient.is_sparse:
                gradient = gradient.to_dense()
            self._take_gradient(number, gradient)

        return take

    def _take_gradient(self, number: int, gradient: Tensor) -> None:
        view = self._gradient_views[number]
        if self._fired[number]:  # a re-entrant backward (activation checkpointing) may come twice
            view.add_(gradient, alpha=self._weight)
            self._check(range(number, number + 1))
            return
        if self._accumulates:
            view.add_(gradient, alpha=self._weight)
        else:  # one pass over memory instead of zeroing, accumulating and scaling
            torch.mul(gradient, self._weight, out=view)
        self._mark_ready(number)
        if self._checkpoint is not None:
            self._checkpoint()

    def _mark_ready(self, number: int) -> None:
        self._fired[number] = 1
        if not self._is_last_part:
            return
        bucket = self._bucket_of[number]
        self._waiting[bucket] -= 1
        if not self._waiting[bucket] and self._check(self._buckets[bucket]):
            self._on_bucket(bucket)

    def _check(self, run: range) -> bool:
        """Whether these parameters' gradients are finite: asked before they are handed over, so that none gets out."""
        found = self._not_finite_in(self.gradient, run)
        self.not_finite = self.not_finite or found
        return found is None

    def _not_finite_in(self, flat: Tensor, run: range) -> str | None:
        layout = self.layout
        if is_finite(flat[layout.offsets[run.start] : layout.offsets[run.stop]]):
            return None
        views = layout.views(flat)
        return last_not_finite((layout.names[number], views[number]) for number in run)

    def _finish_unused(self) -> None:
        """Parameters that took no part in this batch have a gradient of zero."""
        self._is_last_part = True
        if sum(self._fired) == len(self._fired):
            return
        for number in reversed(range(len(self._fired))):
            if not self._fired[number]:
                if not self._accumulates:
                    self._gradient_views[number].zero_()
                self._mark_ready(number)

    def _watch_layers(self) -> None:
        """Call the checkpoint before each layer. The hooks cost time, so they are set when first asked for."""
        if getattr(self, "_watched", False):
            return
        self._watched = True
        for layer in self.module.modules():
            if next(layer.children(), None) is None:
                layer.register_forward_pre_hook(self._before_layer)

    def _before_layer(self, _layer: nn.Module, _inputs: Any) -> None:
        if self._checkpoint is not None:
            self._checkpoint()

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
        self.updates.of(shard).step(norm, advance=advance, shares=self.updates.shares(of, step))

    def advance_schedule(self, updates: int) -> None:
        """Move the learning-rate schedule on by updates that were not made here."""
        self.updates.of().advance_schedule(updates)

    def reset_optimizer(self) -> None:
        """Forget momentum and the like, and begin the learning-rate schedule anew."""
        self.updates.forget()

    def moments(self) -> Sequence[Tensor]:
        """What the optimizer remembers of each parameter (momentum, say), in an order that is the same everywhere."""
        return self.updates.of().moments()

    def shards(self, parts: int) -> Sequence[slice]:
        if all_work_elementwise(self.task, self.module):
            return self.layout.even_shards(parts)
        return self.layout.whole_shards(parts)

    # Evaluation

    def evaluate(self, samples: Samples, parameters: Tensor | None = None) -> dict[str, float]:
        """The metrics over all samples, with the module in evaluation mode; of other parameters if given."""
        if samples.draws:
            seed_all(self._identity["seed"])  # the same test samples every time
        with self._holding(parameters), computing(self._autocast):
            return evaluate(self.task, self.module, samples)

    def state(self, parameters: Tensor | None = None) -> dict[str, Tensor]:
        """A copy of the module's state, apart from any shared memory; with other parameters if given.

        Every gradient was finite, but an update may overflow. The next loss tells of it; after the last, this does.
        """
        flat = self.parameters if parameters is None else parameters
        name = self._not_finite_in(flat, range(len(self._trainable)))
        if name is not None:
            remedy = "lower the learning rate, or clip the gradients (Task(clip_norm=…))"
            raise RunError(f"{name} is not finite after the last update; {remedy}")
        with self._holding(parameters):
            return {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}
