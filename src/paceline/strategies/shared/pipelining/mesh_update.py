"""The update of a model that is split among several ranks.

Several stages hold a tied parameter. They sum its gradients, so that it stays equal on all of them. Parameters that are
not split in a tensor group are bitwise equal on all its ranks, because they are computed from the same values. The
global norm counts every parameter once. The first rank receives the whole model when the run inspects it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import cached_property

from paceline.collectives import all_reduce, norm_of_squares
from paceline.collectives.group_reductions import sum_together
from paceline.collectives.tensors import square_of
from paceline.context import Context, Net, Segment
from paceline.errors import ConfigurationError
from paceline.strategies.shared.pipelining.data_axis import DataAxis


class MeshUpdate:
    """One update of a model that several ranks hold together.

    `net` is the ranks of a pipeline, and `segments` the segments of the model. `held` has the numbers of the segments
    that each rank holds. `row` is all ranks that hold the model together, stage by stage. The ranks of one stage are a
    tensor group.
    """

    def __init__(
        self,
        ctx: Context,
        row: Net,
        net: Net,
        segments: Sequence[Segment],
        held: Sequence[Sequence[int]],
        data: DataAxis,
        tensor: Net,
        *,
        sums_partial: bool,
    ) -> None:
        """Find the parameters to reduce.

        With `sums_partial`, the tensor group sums the gradients of parameters used on sequence shards. Otherwise they
        are summed already.
        """
        self._data = data
        self._tensor = tensor
        self._split = _groups_with_parts(tensor, data.shared_by)
        self._model = ctx.model
        self._row = row
        self._net = net
        self._segments = segments
        self._held = held
        self._size = row.size // net.size
        self._tied = self._find_tied()
        """Tied parameters trained by this rank, with the pipeline ranks that hold them."""
        if self._tied and data.codec != "none":
            bound = "must be none if stages share a parameter, which each would round differently"
            remedy = f"cut the model so that one stage holds {next(iter(self._tied))}"
            raise ConfigurationError("codec", bound, data.codec, remedy)
        self._foreign = [name for name, ranks in self._tied.items() if ranks[0] != net.rank]
        """Parameters that another rank counts in the norm."""
        names = dict.fromkeys(name for number in held[net.rank] for name in segments[number].partial)
        self._partial = [name for name in names if sums_partial and self._trains(name)]
        if row.rank % self._size:
            self._foreign += [name for name in self._find_whole() if name not in self._foreign]

    def _find_whole(self) -> list[str]:
        """Return the parameters that every rank of the tensor group trains as a whole."""
        segments = [self._segments[number] for number in self._held[self._net.rank]]
        parted = {name for segment in segments for name in segment.parted}
        names = dict.fromkeys(name for segment in segments for name in segment.parameters)
        return [name for name in names if name not in parted and self._trains(name)]

    def _find_tied(self) -> dict[str, list[int]]:
        """Return the tied parameters that this rank trains, with all pipeline ranks that hold them."""
        segments = self._segments
        names = [set[str]().union(*(segments[s].parameters for s in held)) for held in self._held]
        own = names[self._net.rank]
        shared = set[str]().union(
            *(own & other for rank, other in enumerate(names) if rank != self._net.rank)
        )
        in_order = (
            dict.fromkeys(name for segment in segments for name in segment.parameters) if shared else ()
        )
        return {
            name: [rank for rank, each in enumerate(names) if name in each]
            for name in in_order
            if name in shared and self._trains(name)
        }

    def _trains(self, name: str) -> bool:
        return name in self._places

    @cached_property
    def _places(self) -> dict[str, slice]:
        return {name: place.where for name, place in self._model.places.items()}

    async def update(self) -> None:
        """Update the whole model once with the gradients of all ranks."""
        model = self._model
        if self._partial:
            await sum_together(self._tensor, [model.gradient[self._places[name]] for name in self._partial])
        for name, ranks in self._tied.items():
            await all_reduce(self._net.split(ranks), model.gradient[self._places[name]], "ring")
        await self._data.sum()
        await self._data.apply(self._norm, self._split)

    async def _norm(self) -> float:
        """Return the global gradient norm. Each rank contributes its own part, and each parameter counts once."""
        own = self._data.own
        square = square_of(self._model.gradient[own])
        for name in self._foreign:
            square = square - square_of(self._model.gradient[_common(self._places[name], own)])
        square = square.clamp(min=0)  # rounding may have made it negative
        if self._data.shared_by is not None:
            await all_reduce(self._data.shared_by, square, "ring")
        return await norm_of_squares(self._row, square)

    def collect(self, step: int) -> Awaitable[None]:
        """Collect the whole model on the first rank of the row, if the run inspects it after this step."""
        return self._model.stages.collect(step, self._row, self._held)


def _groups_with_parts(tensor: Net, sharing: Net | None) -> Sequence[Net]:
    """Return the groups of ranks that update parts of the same parameters. Empty if parameters are not split."""
    if tensor.size == 1:
        return ()
    return (tensor,) if sharing is None else (tensor, sharing)


def _common(one: slice, other: slice) -> slice:
    start = max(one.start, other.start)
    return slice(start, max(start, min(one.stop, other.stop)))
