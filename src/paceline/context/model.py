"""`ctx.model`: what is learned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from paceline.context.batch import Batch
from paceline.context.pieces import Pieces

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from paceline.context.rank import Context

__all__ = ["BUCKET_BYTES", "Data", "Model"]

BUCKET_BYTES = 25 * 2**20
"""Gradients are handed over in buckets of about this size: the size that PyTorch's DDP found good."""


class Data(Protocol):
    """The training samples, and who gets which."""

    @property
    def sample_count(self) -> int: ...

    @property
    def targets(self) -> np.ndarray:
        """The target of every sample, for strategies that part the data among workers."""
        ...

    def batch_of(self, worker: int, step: int) -> Batch:
        """Any worker's slice of the global batch of a step: every rank knows them all."""
        ...

    def ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches, of which the next may be fetched already while the last one is computed.

        `ctx.batches` does so itself: this is for a program that makes batches of its own.
        """
        ...


class Model(Protocol):
    """What is learned: this rank's replica of it."""

    @property
    def data(self) -> Data: ...

    @property
    def pieces(self) -> Pieces:
        """The model in segments: for strategies whose ranks do not hold or compute it as a whole."""
        ...

    @property
    def version(self) -> int:
        """How many updates were made before this program began: above 0 where a run goes on after a checkpoint."""
        ...

    @property
    def parameters(self) -> Tensor:
        """All trainable parameters, one flat tensor."""
        ...

    @property
    def gradient(self) -> Tensor:
        """All gradients, one flat tensor of the same layout."""
        ...

    @property
    def buffers(self) -> Sequence[Tensor]:
        """The module's buffers (BatchNorm statistics and the like), one flat tensor per dtype."""
        ...

    @property
    def moments(self) -> Sequence[Tensor]:
        """What the optimizer remembers of the parameters (momentum and the like), in one order on every rank."""
        ...

    @property
    def clips(self) -> bool:
        """Whether the task clips gradients by their global norm."""
        ...

    def compute(self, batch: Batch, *, weight: float = 1.0, accumulate: bool = False) -> Awaitable[float]:
        """The mean gradient of a batch, times a weight: fills `gradient`, and gives the mean loss.

        With `accumulate` it is added to what is there: so micro-batches make up a batch.
        """
        ...

    def gradients(
        self, batch: Batch, *, weight: float = 1.0, bucket_bytes: int = BUCKET_BYTES
    ) -> AsyncIterator[Tensor]:
        """The same, bucket by bucket, while backward goes on.

        A bucket is a slice of `gradient`, of whole parameters and of about the size given; together they cover it, in
        one order that is the same on every rank.
        """
        ...

    def apply(
        self,
        shard: slice | None = None,
        *,
        norm: float | None = None,
        advance: bool = True,
        of: Sequence[Batch] = (),
    ) -> Awaitable[None]:
        """One step of the optimizer with `gradient`, on all parameters or on one shard of them.

        `norm` is the gradient's global norm, which a shard cannot know; it is needed where the task clips. Without
        `advance` the learning-rate schedule stays where it is: for a local step, which is no step of the run. `of` are
        the batches whose gradients it is the mean of. A rank that computes none, and whose updates do not take one
        step of the run after the other, says so: where several models are trained in turn, it is they that tell whose
        turn it is.
        """
        ...

    def advance_schedule(self, updates: int) -> None:
        """Move the learning-rate schedule on by updates that other ranks made to the same parameters."""
        ...

    def reset_optimizer(self) -> None:
        """Forget momentum and the like, and begin the learning-rate schedule anew."""
        ...

    def shards(self, parts: int) -> Sequence[slice]:
        """The parameters in `parts` contiguous shards, cut where this task's optimizer allows it."""
        ...

    def place(
        self,
        *,
        parameters: Tensor | Literal["lent"] | None = None,
        gradient: Tensor | Literal["lent"] | None = None,
    ) -> None:
        """Move the flat tensors into other memory: a row of a window, or memory that is lent.

        Messages of lent memory are read where they lie, in worlds that can do so, which spares a copy. Such a send is
        done when its receiver has read it: it is for ranks that have nothing to do until then, or that `detach` it.
        """
        ...

    def release(self) -> None:
        """Give up the memory of the parameters. Until `reclaim` nothing may use them."""
        ...

    def reclaim(self) -> None:
        """Have memory for the parameters again; what is in it is not defined."""
        ...

    def state(self, name: str, *, like: Tensor, initial: Tensor | None = None) -> Tensor:
        """What the strategy remembers under a name, to be changed in place: kept from checkpoint to checkpoint.

        The first time it is a copy of `initial`, or zeros of the shape and dtype of `like`.
        """
        ...

    def twin(self) -> Context:
        """This rank once more, with a replica of its own, for a program in the background.

        It is for a rank that both serves and computes: the server's parameters must not change under a computation.
        """
        ...
