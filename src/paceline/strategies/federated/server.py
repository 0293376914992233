"""The server: samples clients, sends them its model, and moves it by the mean of their differences."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.context import Context
from paceline.errors import PeerLost
from paceline.strategies.counts import Counts
from paceline.strategies.federated.messages import ANSWER, MODEL, Update

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FederatedServer"]

_log = logging.getLogger("paceline")


class FederatedServer:
    """The one that holds the model."""

    def __init__(self, ctx: Context, fraction: float, update: Update) -> None:
        self._ctx = ctx
        self._fraction = fraction
        self._update = update
        self._alive = list(ctx.workers)
        self._samples = Counts(ctx, "samples")
        self._was_left_alone = False

    async def run(self) -> None:
        async for step in self._ctx.rounds():
            sampled = self._sample()
            await self._hand_out(sampled)
            # In the order of ranks, so that the sums are the same bits whoever is quicker.
            answers = Answers(self._ctx)
            for client in sampled:
                await self._collect(client, answers)
            self._settle(step, answers)
        self._samples.keep()

    def _sample(self) -> list[int]:
        count = max(1, round(self._fraction * len(self._alive)))
        return sorted(self._ctx.rng.choice(self._alive, size=count, replace=False).tolist())

    async def _hand_out(self, sampled: Sequence[int]) -> None:
        """The model to those who are sampled. The others hear that they are not, so that they wait no longer."""
        model, nothing = (
            (self._ctx.model.parameters, *self._ctx.model.buffers),
            (self._ctx.model.parameters[:0],),
        )
        chosen = set(sampled)
        for client in tuple(self._alive):
            try:
                for tensor in model if client in chosen else nothing:
                    await self._ctx.net.send(client, tensor, tag=MODEL)
            except PeerLost as loss:
                self._go_on_without(loss)

    async def _collect(self, client: int, answers: Answers) -> None:
        if client not in self._alive:
            return
        try:
            difference = await self._ctx.net.recv(client, tag=ANSWER)
            if not difference.tensor.numel():
                return  # it has dropped out
            buffers = [(await self._ctx.net.recv(client, tag=ANSWER)).tensor for _ in self._ctx.model.buffers]
        except PeerLost as loss:
            self._go_on_without(loss)
        else:
            samples, mean_loss = difference.header
            answers.add(difference.tensor, buffers, int(samples), mean_loss)

    def _go_on_without(self, loss: PeerLost) -> None:
        if self._alive == [loss.rank]:
            raise loss
        self._alive.remove(loss.rank)
        self._ctx.log.note_lost(loss.rank)

    def _settle(self, step: int, answers: Answers) -> None:
        self._samples.values[0] += answers.samples
        self._ctx.log.report(loss=answers.loss, samples=self._samples.values[0], clients=answers.count)
        if answers.count:
            self._update(answers.mean_difference())
            answers.put_buffers()
        elif not self._was_left_alone:
            self._was_left_alone = True
            _log.warning("no client answered in round %d: such a round leaves the model as it is", step)


class Answers:
    """The answers of a round, summed up: each counts by its samples."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._difference = ctx.model.gradient.zero_()
        self._buffers: list[Tensor] = []
        self._loss = 0.0
        self.samples = 0
        self.count = 0

    def add(self, difference: Tensor, buffers: Sequence[Tensor], samples: int, loss: float) -> None:
        self._difference.add_(difference, alpha=samples)
        if not self.count:  # counters of batches and the like, which have no mean, stay those of the first
            self._buffers = [b.mul(samples) if b.is_floating_point() else b for b in buffers]
        else:
            for total, buffer in zip(self._buffers, buffers, strict=True):
                if total.is_floating_point():
                    total.add_(buffer, alpha=samples)
        self._loss += loss * samples
        self.samples += samples
        self.count += 1

    @property
    def loss(self) -> float:
        return self._loss / self.samples if self.samples else math.nan

    def mean_difference(self) -> Tensor:
        return self._difference.div_(self.samples)

    def put_buffers(self) -> None:
        for own, total in zip(self._ctx.model.buffers, self._buffers, strict=True):
            own.copy_(total.div_(self.samples) if total.is_floating_point() else total)
