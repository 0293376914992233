"""The server: samples clients, sends them its model, and moves the model by the mean of their differences."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.context import Context, Net
from paceline.errors import PeerLost
from paceline.strategies.shared.counts import Counts
from paceline.strategies.shared.federated.messages import ANSWER, MODEL, Update

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_log = logging.getLogger("paceline")


class FederatedServer:
    """The program of the server, which holds the model."""

    def __init__(self, ctx: Context, fraction: float, update: Update, answers: Net) -> None:
        """Create the server. It receives the differences on the net `answers`."""
        self._ctx = ctx
        self._answers = answers
        self._fraction = fraction
        self._update = update
        self._alive = list(ctx.workers)
        self._samples = Counts(ctx, "samples")
        self._was_left_alone = False

    async def run(self) -> None:
        async for step in self._ctx.rounds():
            sampled = sample_clients(self._ctx.rng, self._alive, self._fraction)
            await self._hand_out(sampled)
            # In the order of ranks, so that the sums have the same bits whichever client is faster.
            answers = Answers(self._ctx)
            for client in sampled:
                await self._collect(client, answers)
            self._settle(step, answers)

    async def _hand_out(self, sampled: Sequence[int]) -> None:
        """Send the model to the sampled clients, and a skip message to the others."""
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
                self._continue_without(loss)

    async def _collect(self, client: int, answers: Answers) -> None:
        if client not in self._alive:
            return
        try:
            difference = await self._answers.recv(client, tag=ANSWER)
            if not difference.tensor.numel():
                return  # the client has dropped out
            buffers = [(await self._ctx.net.recv(client, tag=ANSWER)).tensor for _ in self._ctx.model.buffers]
        except PeerLost as loss:
            self._continue_without(loss)
        else:
            samples, mean_loss = difference.header
            answers.add(difference.tensor, buffers, int(samples), mean_loss)

    def _continue_without(self, loss: PeerLost) -> None:
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
            _log.warning("no client answered in round %d; the model is unchanged", step)


class Answers:
    """The sum of a round's answers, weighted by samples."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._difference = ctx.model.gradient.zero_()
        self._buffers: list[Tensor] = []
        self._loss = 0.0
        self.samples = 0
        self.count = 0

    def add(self, difference: Tensor, buffers: Sequence[Tensor], samples: int, loss: float) -> None:
        self._difference.add_(difference, alpha=samples)
        if not self.count:  # integer buffers (batch counters) have no mean: use the first client's
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


def sample_clients(rng: np.random.Generator, clients: Sequence[int], fraction: float) -> list[int]:
    """Return the clients of a round: this fraction of them, at least one."""
    count = max(1, round(fraction * len(clients)))
    return sorted(rng.choice(clients, size=count, replace=False).tolist())
