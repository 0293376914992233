"""`ctx.model.pieces`: the model in segments, of which a rank may hold some only.

`cut` comes first and is the same on every rank; then `hold`. From then on `ctx.model.parameters`, `gradient` and
`apply` are of what this rank holds. In each step `begin_batch` comes first, then the passes of its micro-batches in the
order that the strategy likes, then `end_batch`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from paceline.context.batch import Batch
from paceline.context.crossing import Crossing
from paceline.context.net import Net
from paceline.context.segment import Segment
from paceline.context.shards import Shards

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BackwardPart", "Pieces"]

BackwardPart = Literal["both", "inputs", "weights"]
"""A backward pass is done in one, or first for the inputs and later for the weights."""


class Pieces(Protocol):
    """The model in segments."""

    @property
    def most_segments(self) -> int:
        """How many segments the model can be cut into."""
        ...

    @property
    def segments(self) -> Sequence[Segment]:
        """What it is cut into, in forward order."""
        ...

    def cut(
        self,
        stages: int,
        cuts: Sequence[str] = (),
        *,
        finer: int = 1,
        tensor: int = 1,
        sequence: bool = False,
    ) -> None:
        """Cut it into stages of about equal seconds, or before the layers that `cuts` names.

        A stage is one segment, or `finer` of them, where parameters come and go segment by segment. With `tensor`,
        matrices are split among so many ranks, and it is also cut where these have to sum: see `Segment.sums`. With
        `sequence`, each of them has a part of the sequence of what is between split layers.
        """
        ...

    def hold(self, segments: Sequence[int], *, worker: int = 0, position: int = 0) -> None:
        """Keep the parameters of these segments only; none at all, if there are no segments.

        Of those that are split, keep the part of this position in the tensor group. What is drawn at random (dropout,
        say) is what worker number `worker` would draw with the whole model.
        """
        ...

    def share(
        self, segments: Sequence[int], *, ranks: int, own: int, sheds: bool, position: int = 0
    ) -> Shards:
        """Hold these segments together with other workers, of which each keeps a part of their gradients and of what
        the optimizer remembers; with `sheds`, of their parameters too. This is number `own` of so many."""
        ...

    def begin_batch(
        self, batch: Batch, parts: int | None = None, *, widest: int | None = None
    ) -> Sequence[Batch]:
        """Begin a step: the micro-batches of a batch, at most `parts`, each of one sample at least.

        Without `parts` there are as many as the task says (`accumulate`). `widest` are the samples of the largest of
        several workers' batches: there are then as many micro-batches as that one has, and the last may be empty. Those
        are not computed.
        """
        ...

    def forward(self, segment: int, micro: int, given: Crossing) -> Awaitable[Crossing]:
        """What goes from a segment to the next for a micro-batch, given what came from the one before.

        It is kept for the backward of the same micro-batch. The last segment computes the loss, and nothing goes on.
        """
        ...

    def backward(
        self, segment: int, micro: int, gradients: Sequence[Tensor], part: BackwardPart = "both"
    ) -> Awaitable[Sequence[Tensor]]:
        """The gradients of what came from the segment before and wants one, given those of what went to the next.

        Those of the weights are added to `gradient`, each micro-batch by its share of the batch. `part` does one half
        of it: first the inputs', for which the segment before waits, and at any time later the weights'.
        """
        ...

    def forward_through(
        self, segments: Sequence[int], micro: int, given: Crossing, net: Net
    ) -> Awaitable[Crossing] | None:
        """`forward` of several segments in turn, with the sums over a tensor group between them (`Segment.sums`).

        Only where a world can do that as a whole; None: pass by pass, sum by sum. It is so for all ranks of the group
        or for none.
        """
        ...

    def backward_through(
        self, segments: Sequence[int], micro: int, gradients: Sequence[Tensor], part: BackwardPart, net: Net
    ) -> Awaitable[Sequence[Tensor]] | None:
        """The same of `backward`, from the last of these segments to the first."""
        ...

    def end_batch(self) -> None:
        """End a step: its loss is noted. Raises if the loss or the gradient is not finite."""
        ...

    def trains(self, name: str) -> bool:
        """Whether this rank holds and trains a parameter."""
        ...

    def place_of(self, name: str) -> slice:
        """Where a parameter that this rank trains lies in `parameters` and `gradient`."""
        ...

    @property
    def held_parameters(self) -> Tensor:
        """The parameters of the held segments, flat, in the model's order."""
        ...

    @property
    def held_buffers(self) -> Sequence[Tensor]:
        """The buffers of the held segments (BatchNorm's statistics and the like), one flat tensor per dtype."""
        ...

    @property
    def averages(self) -> bool:
        """Whether the run keeps a moving average of the weights: it must then be shown every step."""
        ...

    def put(
        self, segments: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor], *, position: int = 0
    ) -> None:
        """On the first worker: what the rank that holds these segments has, at that position in its tensor group.

        So the run sees the whole model.
        """
        ...
