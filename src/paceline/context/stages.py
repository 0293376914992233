"""`ctx.model.stages`: the model in segments. A rank may hold some of them.

Call `cut` first, with the same arguments on every rank, then `hold`. Afterwards `ctx.model.parameters`,
`gradient` and `apply` cover only what this rank holds. In each step open a `batch`, and run the passes of its
micro-batches in any order the strategy chooses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, Protocol

from paceline.context.batch import Batch
from paceline.context.boundary import BoundaryValues
from paceline.context.net import Net
from paceline.context.segment import Segment
from paceline.context.shards import Shards

if TYPE_CHECKING:
    from torch import Tensor

BackwardPart = Literal["both", "inputs", "weights"]
"""Part of a backward pass: all of it, or first the gradients of the inputs and later those for the weights."""


Hooks = Literal["never", "fallback", "always"]
"""When to run the model uncut, with hooks of its modules: never, only if it cannot be traced, or always."""


class Stages(Protocol):
    """The model in segments."""

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
        """Cut the model into `stages` x `chunks` stages of about equal compute time, or before the layers in `cuts`.

        Return the segments, in forward order.
        With `fewer`, the number of stages is reduced if the model has too few layers. A stage has `finer` segments.
        Use more than one if parameters are gathered and freed segment by segment. `tensor` is the number of ranks
        that matrices are split among. The model is then also cut where these ranks reduce values: see
        `Segment.reductions`. With `sequence`, each of them holds a sequence shard of the values between split
        layers. With `hooks`, a model that is not cut has blocks as its segments. Its passes are those of
        `Shards.passes` only. `passes` is the number of parts of a batch that pass through the model one by one. A
        model that works for one size of batch only is traced for this part.
        """
        ...

    def hold(
        self,
        segments: Sequence[int],
        *,
        worker: int = 0,
        position: int = 0,
        shared_by: int | None = None,
        frees_parameters: bool = False,
    ) -> Shards:
        """Keep the parameters of these segments only. With no segments, keep none.

        Of split parameters, keep the shard of this position in the tensor group. Dropout uses the random stream of
        worker `worker` in an unsplit model. With `shared_by`, that many workers share the segments. Each keeps one
        shard of the gradients and the optimizer state; with `frees_parameters` also of the parameters. Without it, the
        result has no units.
        """
        ...

    def batch(
        self,
        batch: Batch,
        parts: int | None = None,
        *,
        widest: int | None = None,
        first: int | None = None,
    ) -> AbstractContextManager[Sequence[Batch]]:
        """Return a context manager for the passes of one step. Its value is the micro-batches of the batch.

        There are at most `parts` micro-batches, each with at least one sample. Without `parts` the task sets their
        number (`accumulate`). `widest` is the sample count of the largest batch among several workers. The number of
        micro-batches is then that of the largest batch, and the last ones may be empty. Empty micro-batches are not
        computed. At the end the loss is recorded, and an error is raised if the loss or the gradient is not finite.

        With `first`, micro-batches are numbered from there on, and several batches may be open if their numbers differ.
        All passes of a batch then use the parameters as they were when it was opened, in spite of later updates. The
        first backward pass of a batch follows the update with the gradient of the batch before.
        """
        ...

    def forward(
        self, segments: Sequence[int], micro: int, given: BoundaryValues, net: Net | None = None
    ) -> Awaitable[BoundaryValues]:
        """Run the forward passes of consecutive segments for a micro-batch. Return the outputs for the next segment.

        `given` is the output of the segment before them. Activations are stored for the backward pass of the same
        micro-batch. The last segment of the model computes the loss and returns no outputs. With `net`, a tensor group,
        its ranks reduce the outputs of each segment (`Segment.reductions`). Without it, the caller does that.
        """
        ...

    def backward(
        self,
        segments: Sequence[int],
        micro: int,
        gradients: Sequence[Tensor],
        part: BackwardPart = "both",
        net: Net | None = None,
    ) -> Awaitable[Sequence[Tensor]]:
        """Run the backward passes, from the last of these segments to the first. Return the gradients of their inputs.

        `gradients` are the gradients of the outputs. Inputs that need no gradient are left out. The gradients of the
        weights are added to `gradient`, each micro-batch weighted by its share of the batch. `part` selects one half:
        first "inputs", because the previous segment waits for them, then "weights", at any later time. With `net`, the
        tensor group reduces gradients of inputs (`Segment.gradient_reductions`).
        """
        ...

    def collect(self, step: int, net: Net, segments: Sequence[Sequence[int]]) -> Awaitable[None]:
        """Collect the whole model on the first rank of `net` after a step, if the run inspects it.

        `net` is the ranks that hold the model together, stage by stage, and `segments` the segments of each stage. The
        ranks of one stage are a tensor group. This is not training: it starts when all ranks have completed the step,
        and its time is not part of the run's time. A moving average needs the weights of every step, so for it the
        collection is part of training.
        """
        ...
