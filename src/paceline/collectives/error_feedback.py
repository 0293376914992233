"""Error feedback: the part of a gradient that a codec does not send is added to the next gradient.

The sent part and the kept part add up to the input. The kept part is state of the model (`codec_residual`), so that
checkpoints save it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.codecs import GradientCodec, PowerSGD
from paceline.codecs.powersgd import Factors
from paceline.context import Model, Net
from paceline.schedules.collectives.collective import Collective

if TYPE_CHECKING:
    from torch import Tensor

_PREFIX_BYTES = 16  # of a message: its offset in all parameters, and its length

Shapes = Sequence[Sequence[int]]


class ErrorFeedback:
    """The kept parts of all parameters, and the codec's own state."""

    def __init__(self, model: Model, codec: GradientCodec, of: Tensor | None) -> None:
        self._model = model
        self._codec = codec
        self._of = of
        self._shapes: dict[tuple[int, int], Shapes] = {}
        if isinstance(codec, PowerSGD):
            codec.check(_shapes_of(model))

    def message(self, tensor: Tensor) -> Tensor:
        """Return a message with the codes of a tensor and its position."""
        import torch

        start = self._start(tensor)
        codes = self.encode(tensor, start)
        prefix = torch.tensor([start, tensor.numel()], device=codes.device).view(torch.uint8)
        return torch.cat([prefix, codes])

    def values(self, message: Tensor, into: Tensor | None) -> Tensor:
        """Return the decoded values of a message."""
        import torch

        if message.is_meta:
            return torch.empty_like(self._model.parameters if into is None else into)
        start, length = message[:_PREFIX_BYTES].clone().view(torch.int64).tolist()
        values = self._model.parameters.new_empty(length)
        self._codec.decode(message[_PREFIX_BYTES:], values, self._within(start, length))
        return values

    def encode(self, tensor: Tensor, start: int) -> Tensor:
        """Return the codes of the sum of a tensor and its kept part. Keep the part that the codes do not contain."""
        import torch

        shapes = self._within(start, tensor.numel())
        total, velocity = self._total(tensor, start)
        codes = self._codec.encode(total, shapes, self._memory(start, shapes))
        if not tensor.is_meta:
            sent = torch.empty_like(total)
            self._codec.decode(codes, sent, shapes)
            total.sub_(sent)
            if velocity is not None:
                velocity.masked_fill_(sent != 0, 0)
        return codes

    async def all_reduce(self, net: Net, collective: Collective, data: Tensor) -> None:
        """Sum a tensor over the ranks of a net, except for the part that each rank keeps."""
        if isinstance(self._codec, PowerSGD):
            await self._sum_factors(self._codec, net, collective, data)
        else:
            await self._gather_codes(net, data)

    async def _gather_codes(self, net: Net, data: Tensor) -> None:
        start = self._start(data)
        codes = self.encode(data, start)
        everybody = codes.new_empty(net.size * codes.numel())
        rows = everybody.view(net.size, -1)
        rows[net.rank] = codes
        await net.execute(Collective("all-gather", "ring", net.size), everybody, combine="copy")
        if data.is_meta:
            return
        values, shapes = data.new_empty(data.numel()), self._within(start, data.numel())
        data.zero_()
        for row in rows:  # in the order of ranks, so that the sum has the same bits on all of them
            self._codec.decode(row, values, shapes)
            data.add_(values)

    async def _sum_factors(self, codec: PowerSGD, net: Net, collective: Collective, data: Tensor) -> None:
        """Sum the left factors, then the right ones, so that all ranks project on the same basis."""
        import torch

        start = self._start(data)
        shapes = self._within(start, data.numel())
        total, _ = self._total(data, start)
        right = self._memory(start, shapes)
        assert right is not None
        left_length, _, plain_length = codec.lengths(shapes)
        if data.is_meta:
            for length in (left_length + plain_length, right.numel()):
                if length:
                    await net.execute(collective, data.new_empty(length), combine="sum")
            return
        codec.warm_up(right)
        plain = codec.plain_of(total, shapes)
        first = torch.cat([codec.project(total, shapes, right), plain])
        await net.execute(collective, first, combine="sum")
        left = first[:left_length]
        codec.orthonormalize(left, shapes)
        codec.project_back(total, shapes, left, right)
        sent = torch.empty_like(total)
        codec.multiply(Factors(left, right, plain), sent, shapes)
        total.sub_(sent)
        if right.numel():
            await net.execute(collective, right, combine="sum")
        codec.multiply(Factors(left, right, first[left_length:]), data, shapes)

    def _total(self, tensor: Tensor, start: int) -> tuple[Tensor, Tensor | None]:
        """Return the kept part with the tensor added, in place, and the velocity if the codec has a momentum."""
        place = slice(start, start + tensor.numel())
        residual, velocity = self._state("codec_residual")[place], None
        if not self._codec.momentum:
            residual.add_(tensor)
        else:
            velocity = self._state("codec_velocity")[place]
            residual.add_(velocity.mul_(self._codec.momentum).add_(tensor))
        return residual, velocity

    def _state(self, name: str) -> Tensor:
        return self._model.state(name, like=self._base())

    def _memory(self, start: int, shapes: Shapes) -> Tensor | None:
        length = self._codec.memory_length(shapes)
        like = self._base().new_empty(length)
        return self._model.state(f"codec_memory_{start}", like=like) if length or shapes else None

    def _base(self) -> Tensor:
        return self._model.gradient if self._of is None else self._of

    def _start(self, tensor: Tensor) -> int:
        return int(tensor.storage_offset() - self._base().storage_offset())

    def _within(self, start: int, length: int) -> Shapes:
        """Return the shapes of the parameters in a range. A parameter that is cut counts as a vector."""
        key = (start, length)
        if key not in self._shapes:
            self._shapes[key] = _shapes_within(_shapes_of(self._model), start, start + length)
        return self._shapes[key]


def _shapes_of(model: Model) -> Shapes:
    return [place.shape for place in model.places.values()]


def _shapes_within(shapes: Shapes, start: int, stop: int) -> Sequence[Sequence[int]]:
    ends = itertools.accumulate((math.prod(shape) for shape in shapes), initial=0)
    found: list[Sequence[int]] = []
    for shape, (first, last) in zip(shapes, itertools.pairwise(ends), strict=True):
        low, high = max(first, start), min(last, stop)
        if low < high:
            found.append(shape if high - low == last - first else (high - low,))
    return found
