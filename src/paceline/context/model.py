"""`ctx.model`: the trained model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from paceline.context.batch import Batch
from paceline.context.net import Net
from paceline.context.stages import Stages

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.context.rank import Context

BUCKET_BYTES = 25 * 2**20
"""Default size of a gradient bucket: the default of PyTorch's DDP."""


class ParameterPlace(NamedTuple):
    """Where a parameter is in the flat tensors."""

    where: slice
    """Slice of `gradient` with this rank's part of the parameter. Empty if other ranks update all of it."""
    shape: Sequence[int]
    """Shape of the parameter in `parameters`. A complex number is a pair of numbers."""


class Model(Protocol):
    """This rank's replica of the trained model."""

    @property
    def stages(self) -> Stages:
        """The model in segments, for strategies in which ranks hold or compute parts of the model."""
        ...

    @property
    def version(self) -> int:
        """Number of updates made before this program started. Above 0 if the run resumed from a checkpoint."""
        ...

    @property
    def parameters(self) -> Tensor:
        """All trainable parameters, one flat tensor."""
        ...

    @property
    def places(self) -> Mapping[str, ParameterPlace]:
        """Place of each parameter that this rank trains, by name, in the order of `parameters`."""
        ...

    @property
    def gradient(self) -> Tensor:
        """All gradients, one flat tensor of the same layout."""
        ...

    @property
    def gradient_codec(self) -> str:
        """Codec of messages with gradients, if the strategy has none: "bf16" if the task computes in 16 bits."""
        ...

    @property
    def buffers(self) -> Sequence[Tensor]:
        """The module's buffers (BatchNorm statistics and the like), one flat tensor per dtype."""
        ...

    @property
    def moments(self) -> Sequence[Tensor]:
        """Optimizer state per parameter (momentum and the like), in the same order on every rank."""
        ...

    def compute(self, batch: Batch, *, weight: float = 1.0, accumulate: bool = False) -> Awaitable[float]:
        """Compute the mean gradient of a batch, times a weight, into `gradient`. Return the mean loss.

        With `accumulate` the result is added to `gradient`, so that several micro-batches make up a batch.
        """
        ...

    def gradients(
        self, batch: Batch, *, weight: float = 1.0, bucket_bytes: int = BUCKET_BYTES
    ) -> AsyncIterator[Tensor]:
        """Compute the same gradient and yield it bucket by bucket, while the backward pass continues.

        A bucket is a slice of `gradient` that contains whole parameters and has about the given size. Together the
        buckets cover `gradient`. Their order is the same on every rank.
        """
        ...

    def apply(
        self,
        shard: slice | None = None,
        *,
        norm: Callable[[], Awaitable[float]] | None = None,
        advance: bool = True,
        of: Sequence[Batch] = (),
        split: Sequence[Net] = (),
    ) -> Awaitable[None]:
        """Take one optimizer step with `gradient`, on all parameters or on one shard of them.

        `norm` returns the global gradient norm, which a shard cannot compute. It is called if the task clips gradients.
        With `advance=False` the learning-rate schedule does not advance: for local steps, which are not steps of the
        run. `of` is the batches that the mean gradient was computed from. If several models are trained in turn, it
        selects the model. Pass `of` on ranks that compute no gradients and do not update once per step of the run.
        `split` is the groups whose ranks update different parts of the same parameters. If the optimizer needs norms of
        whole layers (LARS, LAMB), these ranks sum them first.
        """
        ...

    def advance_schedule(self, updates: int, *, restart: bool = False) -> None:
        """Advance the learning-rate schedule by updates that other ranks made to the same parameters.

        With `restart`, first clear the optimizer state, and restart the schedule.
        """
        ...

    def shards(self, parts: int) -> Sequence[slice]:
        """Return the parameters in `parts` contiguous shards, cut where this task's optimizer allows it."""
        ...

    def place(
        self,
        *,
        parameters: Tensor | Literal["lent"] | None = None,
        gradient: Tensor | Literal["lent"] | None = None,
    ) -> None:
        """Move the flat tensors into other memory: a row of a window, or "lent" memory.

        Where the backend supports it, a message from lent memory is read in place, which saves a copy. Such a send is
        done when its receiver has read the data. If parameters are lent, `apply` does not wait for started sends of
        them: it copies the part that is not sent yet.
        """
        ...

    def released(self) -> AbstractContextManager[None]:
        """Return a context manager that frees the memory of the parameters.

        At the end of the context the memory is allocated again, with undefined content.
        """
        ...

    def state(self, name: str, *, like: Tensor, initial: Tensor | None = None) -> Tensor:
        """Return strategy state under a name, to be changed in place. It is saved in checkpoints.

        The first time it is a copy of `initial`, or zeros of the shape and dtype of `like`.
        """
        ...

    def twin(self) -> Context:
        """Return a second context of this rank, with a separate replica, for a background program.

        Use it on a rank that is both a server and a worker: the server's parameters must not change during a
        computation.
        """
        ...
