"""Nets that encode what they send. A wrapper around a net is a net, so that collectives run on it unchanged."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from paceline.codecs import GradientCodec, MessageCodec, codec_of
from paceline.collectives.error_feedback import ErrorFeedback
from paceline.context import Combine, Context, Message, Net, Window
from paceline.errors import ConfigurationError, MismatchError
from paceline.schedules.collectives.collective import Collective

if TYPE_CHECKING:
    from torch import Tensor

_TAG = 0x6000_0000  # of collectives on a coded net; strategies use smaller tags
_TAGS = 2**24
_SEEDS = 2**31


def coded(ctx: Context, codec: str, net: Net | None = None, *, of: Tensor | None = None) -> Net:
    """Return `net`, or the net of all ranks, with a codec. The net itself if the codec is "none".

    Codecs of whole gradients need the position of a tensor among all parameters: it must be a part of `of`, a flat
    tensor of all parameters. None stands for `ctx.model.gradient`.
    """
    inner, made = ctx.net if net is None else net, codec_of(codec)
    if made is None:
        return inner
    if isinstance(made, MessageCodec):
        return CodedMessages(ctx, inner, made, Seeds(ctx))
    return CodedGradients(ctx, inner, made, ErrorFeedback(ctx.model, made, of))


class Seeds:
    """Seeds for random rounding. They continue after a checkpoint."""

    def __init__(self, ctx: Context) -> None:
        import torch

        # A copy of the generator: a codec must not change what a strategy draws from it.
        first = int(copy.deepcopy(ctx.rng).integers(_SEEDS))
        self._state = ctx.model.state(
            "codec_seed", like=torch.zeros(2, dtype=torch.int64), initial=torch.tensor([first, 0])
        )

    def next(self) -> int:
        first, count = self._state.tolist()
        self._state[1] = count + 1
        return int(first * _SEEDS + count)


class _Wrapper:
    """Base of all coded nets. It declines windows, and a backend's faster collectives."""

    shares_memory = False

    def __init__(self, ctx: Context, inner: Net) -> None:
        self._ctx = ctx
        self._inner = inner
        self._parts: dict[tuple[int, ...], Net] = {}

    @property
    def rank(self) -> int:
        return self._inner.rank

    @property
    def size(self) -> int:
        return self._inner.size

    @property
    def hosts(self) -> Sequence[int]:
        return self._inner.hosts

    def window(self, name: str, *, rows: int, like: Tensor) -> Window:
        bound, remedy = "must not share memory with a codec", "use an algorithm that passes messages"
        raise ConfigurationError("window", bound, name, remedy)

    def split(self, ranks: Sequence[int]) -> Net:
        key = tuple(ranks)
        if key not in self._parts:
            self._parts[key] = self._around(self._inner.split(ranks))
        return self._parts[key]

    def count(self) -> int:
        return self._inner.count()

    async def recv(
        self, source: int, into: Tensor | None = None, *, combine: Combine = "copy", tag: int = 0
    ) -> Message:
        message = await self._inner.recv(source, tag=tag)
        if not message.tensor.numel():
            return message
        values = self._decoded(message.tensor, into)
        if into is None:
            return message._replace(tensor=values)
        if values.numel() != into.numel():
            raise MismatchError(message.source, f"[{values.numel()}]", self.rank, f"[{into.numel()}]")
        if not into.is_meta:
            from paceline.model.sums import combine_into  # imports torch

            combine_into(into, values.view(into.shape), combine)
        return message._replace(tensor=into)

    def _around(self, inner: Net) -> Net:
        raise NotImplementedError

    def _decoded(self, codes: Tensor, into: Tensor | None) -> Tensor:
        """Return the values of a message that is received into `into`."""
        raise NotImplementedError


class CodedMessages(_Wrapper):
    """A net that encodes each message. Empty messages are sent as they are."""

    def __init__(self, ctx: Context, inner: Net, codec: MessageCodec, seeds: Seeds) -> None:
        super().__init__(ctx, inner)
        self._codec = codec
        self._seeds = seeds
        self._collectives = 0
        self._rounds = False

    def _around(self, inner: Net) -> Net:
        return CodedMessages(self._ctx, inner, self._codec, self._seeds)

    async def send(self, to: int, tensor: Tensor, *, tag: int = 0, header: tuple[float, ...] = ()) -> None:
        if not tensor.numel():
            await self._inner.send(to, tensor, tag=tag, header=header)
            return
        codes = self._codec.encode(tensor.reshape(-1), 0 if tensor.is_meta else self._seeds.next())
        if self._rounds and not tensor.is_meta:
            tensor.copy_(self._codec.decode(codes, tensor.dtype).view(tensor.shape))
        await self._inner.send(to, codes, tag=tag, header=header)

    def _decoded(self, codes: Tensor, into: Tensor | None) -> Tensor:
        if into is not None and into.is_meta:
            return into
        dtype = self._ctx.model.parameters.dtype if into is None else into.dtype
        return self._codec.decode(codes, dtype)

    def execute(self, collective: Collective, data: Tensor, *, combine: Combine) -> Awaitable[None]:
        from paceline.collectives.interpreter import interpret  # imports torch

        # Every rank must end with the same values: those that a sender keeps are rounded like those that it sends.
        rounding = copy.copy(self)
        rounding._rounds = True
        return interpret(self._ctx, rounding, collective, data, combine=combine, next_tag=self._next_tag)

    def _next_tag(self) -> int:
        self._collectives += 1
        return _TAG + self._collectives % _TAGS


class CodedGradients(_Wrapper):
    """A net that encodes each gradient once, with error feedback. All-reduces exchange the codes."""

    def __init__(self, ctx: Context, inner: Net, codec: GradientCodec, feedback: ErrorFeedback) -> None:
        super().__init__(ctx, inner)
        self._codec = codec
        self._feedback = feedback

    def _around(self, inner: Net) -> Net:
        return CodedGradients(self._ctx, inner, self._codec, self._feedback)

    async def send(self, to: int, tensor: Tensor, *, tag: int = 0, header: tuple[float, ...] = ()) -> None:
        codes = self._feedback.message(tensor) if tensor.numel() else tensor
        await self._inner.send(to, codes, tag=tag, header=header)

    def _decoded(self, codes: Tensor, into: Tensor | None) -> Tensor:
        return self._feedback.values(codes, into)

    async def execute(self, collective: Collective, data: Tensor, *, combine: Combine) -> None:
        if collective.goal != "all-reduce" or combine != "sum":
            await self._inner.execute(collective, data, combine=combine)
        elif self.size > 1:
            await self._feedback.all_reduce(self._inner, collective, data)
