"""Local SGD: every worker takes H local steps, then all workers average their parameters.

A step is one local step of every worker, on its slice of the step's batch. The gradient of a slice is scaled so that
the mean of the workers' gradients is the batch's gradient. With H = 1 this equals `all-reduce`, if the optimizer's
update is linear in the gradient (SGD, with or without momentum).

When: A slow network: workers communicate once in H steps. A large H costs accuracy.
Cost, n bytes and p workers: 2 n (p - 1)/p sent by each worker (ring) every H steps. With constant times, and c the
ratio of averaging time to gradient time: (1 + c)/(1 + c/H) times as fast as averaging in every step.
Sources: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; averaged momentum: Yu, Jin, Yang, "On the
Linear Speedup Analysis of Communication Efficient Momentum SGD", ICML 2019; post-local: Lin, Stich, Patel, Jaggi,
"Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from paceline.collectives import ALGORITHMS, all_reduce
from paceline.collectives.coded import coded
from paceline.context import Batch, Context, Net, StateAt, Strategy
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.strategies.all_reduce import resolve_algorithm
from paceline.strategies.shared.buffers import follow_buffers
from paceline.strategies.shared.codec import codec_field, keeps_residuals, set_codec
from paceline.strategies.shared.search_space import tried

AVERAGES = ("parameters", "parameters+momentum")


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSGD(Strategy):
    """Workers take several local steps, then average their parameters."""

    period: int = field(
        default=8,
        metadata={"help": "local steps between two averages (H)", "tries": tried(2, 4, 8, 16, leads=True)},
    )
    averages: str = field(
        default="parameters", metadata={"help": f"what is averaged: {' or '.join(AVERAGES)}"}
    )
    post_local: int = field(
        default=0,
        metadata={"help": "number of steps at the beginning that average every gradient, like all-reduce"},
    )
    algorithm: str = field(
        default="auto", metadata={"help": f"how tensors are summed: {', '.join(ALGORITHMS)}"}
    )
    codec: str = codec_field("the differences since the last average")

    def __post_init__(self) -> None:
        check_period(self.period)
        if self.averages not in AVERAGES:
            raise UnknownNameError("averages", str(self.averages), AVERAGES)
        if not isinstance(self.post_local, int) or isinstance(self.post_local, bool) or self.post_local < 0:
            bound = "must be a whole number of at least 0"
            raise ConfigurationError("post_local", bound, self.post_local, "0 is local from the start")
        if self.algorithm not in ALGORITHMS:
            raise UnknownNameError("algorithm", self.algorithm, ALGORITHMS)
        set_codec(self, self.algorithm)
        if self.codec != "none":
            self._check_codec()

    @property
    def state_at(self) -> StateAt:
        return "shards" if keeps_residuals(self.codec) else "workers"

    def _check_codec(self) -> None:
        """Refuse settings without a common value from which workers could send their difference."""
        if self.averages != AVERAGES[0]:
            bound = "must be parameters with a codec, which encodes their differences since the last average"
            raise ConfigurationError("averages", bound, self.averages, "use codec=none")
        if self.post_local:
            remedy = "use codec=none, or all-reduce with a codec"
            raise ConfigurationError("post_local", "must be 0 with a codec", self.post_local, remedy)

    async def worker(self, ctx: Context) -> None:
        net = coded(ctx, self.codec)
        algorithm = resolve_algorithm(ctx, self.algorithm, self.codec)
        if self.codec != "none":
            differences = _Differences(ctx, net, algorithm)

        async def average(local_steps: int) -> None:
            if local_steps % self.period:
                return
            if self.codec != "none":
                await differences.average()
                return
            moments = ctx.model.moments if self.averages == "parameters+momentum" else ()
            for tensor in (ctx.model.parameters, *moments):
                await all_reduce(net, tensor, algorithm, op="mean")

        await take_local_steps(ctx, self.period, average, algorithm, synchronous=self.post_local)


class _Differences:
    """Averages the parameters of all workers. Each sends its difference from the last average."""

    def __init__(self, ctx: Context, net: Net, algorithm: str) -> None:
        self._model = ctx.model
        self._net = net
        self._algorithm = algorithm
        self._last = ctx.model.state("average", like=ctx.model.parameters, initial=ctx.model.parameters)

    async def average(self) -> None:
        parameters = self._model.parameters
        difference = self._model.gradient  # the next local step computes it anew
        difference.copy_(parameters).sub_(self._last)
        await all_reduce(self._net, difference, self._algorithm, op="mean")
        parameters.copy_(self._last.add_(difference))


async def take_local_steps(
    ctx: Context,
    period: int,
    exchange: Callable[[int], Awaitable[None]],
    algorithm: str = "auto",
    *,
    synchronous: int = 0,
) -> None:
    """Run a worker: synchronous steps first, then local steps. After each of these, call `exchange` with their number.

    All workers take the buffers of the first one after every `period` local steps.
    """
    async for batch in ctx.batches():
        local_steps = batch.step + 1 - synchronous
        if local_steps <= 0:
            await _synchronous_step(ctx, batch, algorithm)
        else:
            await _local_step(ctx, batch)
            await exchange(local_steps)
            if local_steps % period == 0:
                await follow_buffers(ctx)
        await ctx.log.observe(batch.step)


async def _synchronous_step(ctx: Context, batch: Batch, algorithm: str) -> None:
    async for bucket in ctx.model.gradients(batch, weight=batch.weight):
        await all_reduce(ctx.net, bucket, algorithm)
    await ctx.model.apply()
    await follow_buffers(ctx)


async def _local_step(ctx: Context, batch: Batch) -> None:
    # The weight makes the mean over workers equal to the mean over the batch.
    await ctx.model.compute(batch, weight=batch.weight * len(ctx.workers))
    await ctx.model.apply()


def check_period(period: object) -> None:
    if not isinstance(period, int) or isinstance(period, bool) or period < 1:
        remedy = "1 averages after every step"
        raise ConfigurationError("period", "must be a whole number of at least 1", period, remedy)
