"""DiLoCo: every worker takes H local steps with the task's optimizer, then all take one outer step together.

The outer gradient is the difference of the parameters before the H steps and the workers' mean after them. The
outer optimizer is SGD with Nesterov momentum. Inner optimizers keep their state. `outer_lr=1,outer_momentum=0` is
`local-sgd`.

Streaming DiLoCo divides the model into P fragments (`fragments`). Fragment i, counted from 0, has its turn after
(i + 1) H / P steps of each period of H steps, so that a step sends at most one fragment if H >= P. Workers compute
`delay` more local steps while a fragment is exchanged. Then each takes `mix` times its own values plus (1 - mix) times
the new ones.

When: Very slow links between workers, large models, H in the hundreds.
Cost, n bytes and p workers: 2 n (p - 1)/p sent by each worker (ring) every H steps, n/P of them in the background of
`delay` steps. A worker stores the outer parameters, the momentum and, with a delay, the mean of the differences.
Sources: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023. There AdamW is the
inner optimizer, H is 500, and the outer learning rate and momentum are 0.7 and 0.9. Streaming: Douillard et al.,
"Streaming DiLoCo with overlapping communication", 2025 (arXiv 2501.18512).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.collectives import ALGORITHMS, all_reduce
from paceline.collectives.coded import coded
from paceline.context import Context, Handle, StateAt, Strategy
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.strategies.all_reduce import resolve_algorithm
from paceline.strategies.local_sgd import check_period, take_local_steps
from paceline.strategies.shared.codec import codec_field, keeps_residuals, set_codec
from paceline.strategies.shared.search_space import tried

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class DiLoCo(Strategy):
    """Workers take many local steps, then one outer Nesterov step together."""

    period: int = field(
        default=50,
        metadata={"help": "local steps between two outer steps (H)", "tries": tried(10, 50, leads=True)},
    )
    outer_lr: float = field(default=0.7, metadata={"help": "learning rate of the outer steps"})
    outer_momentum: float = field(default=0.9, metadata={"help": "Nesterov momentum of the outer steps"})
    fragments: int = field(
        default=1, metadata={"help": "fragments of the model, which take outer steps in turn"}
    )
    delay: int = field(default=0, metadata={"help": "local steps while a fragment is exchanged"})
    mix: float = field(
        default=0.0, metadata={"help": "weight of a worker's own parameters after an outer step"}
    )
    algorithm: str = field(
        default="auto", metadata={"help": f"how tensors are summed: {', '.join(ALGORITHMS)}"}
    )
    codec: str = codec_field("the differences")

    def __post_init__(self) -> None:
        check_period(self.period)
        if not 0 < self.outer_lr < float("inf"):
            raise ConfigurationError("outer_lr", "must be finite and above 0", self.outer_lr, "try 0.7")
        if not 0 <= self.outer_momentum < 1:
            bound = "must be at least 0 and below 1"
            raise ConfigurationError("outer_momentum", bound, self.outer_momentum, "try 0.9")
        _check_whole("fragments", self.fragments, 1, self.period, "at most the period")
        _check_whole("delay", self.delay, 0, self.period - 1, "below the period")
        if not 0 <= self.mix < 1:
            raise ConfigurationError(
                "mix", "must be at least 0 and below 1", self.mix, "0 takes the new ones"
            )
        if self.algorithm not in ALGORITHMS:
            raise UnknownNameError("algorithm", self.algorithm, ALGORITHMS)
        set_codec(self, self.algorithm)

    @property
    def state_at(self) -> StateAt:
        return "shards" if keeps_residuals(self.codec) else "workers"

    async def worker(self, ctx: Context) -> None:
        outer = _OuterSteps(ctx, self)
        await take_local_steps(ctx, self.period, outer.exchange)
        await outer.drain()


class _OuterSteps:
    """The outer optimizer of one worker, and the exchanges of its fragments."""

    def __init__(self, ctx: Context, settings: DiLoCo) -> None:
        parameters = ctx.model.parameters
        if settings.fragments > parameters.numel():
            bound = f"must be at most {parameters.numel()}, the number of parameters"
            raise ConfigurationError("fragments", bound, settings.fragments)
        self._ctx = ctx
        self._settings = settings
        self._outer = ctx.model.state("outer_parameters", like=parameters, initial=parameters)
        self._momentum = ctx.model.state("outer_momentum", like=parameters)
        # With a delay, a checkpoint may be written between a fragment's turn and its outer step.
        self._differences = (
            ctx.model.state("outer_gradient", like=parameters)
            if settings.delay
            else parameters.new_empty(parameters.shape)
        )
        self._net = coded(ctx, settings.codec, of=self._differences)
        self._algorithm = resolve_algorithm(ctx, settings.algorithm, settings.codec)
        self._fragments = ctx.model.shards(settings.fragments)
        self._under_way: dict[int, Handle[None]] = {}

    async def exchange(self, local_steps: int) -> None:
        """Start the exchange that is due after this step. Take the outer step that is due."""
        for number, fragment in enumerate(self._fragments):
            if self._has_turn(number, local_steps):
                await self.drain()  # one exchange at a time: fragments of one size share a window
                difference = self._differences[fragment]
                difference.copy_(self._outer[fragment]).sub_(self._ctx.model.parameters[fragment])
                mean = all_reduce(self._net, difference, self._algorithm, op="mean")
                self._under_way[number] = self._ctx.start(mean)
        for number, fragment in enumerate(self._fragments):
            if self._has_turn(number, local_steps - self._settings.delay):
                if number in self._under_way:
                    await self._under_way.pop(number)
                self._step(fragment)

    async def drain(self) -> None:
        """Wait until no exchange is under way."""
        while self._under_way:
            await self._under_way.pop(next(iter(self._under_way)))

    def _has_turn(self, number: int, local_steps: int) -> bool:
        period = self._settings.period
        turn = (number + 1) * period // self._settings.fragments
        return local_steps > 0 and (local_steps - turn) % period == 0

    def _step(self, fragment: slice) -> None:
        """Take the outer step of a fragment, with Nesterov momentum, and mix the result with the own parameters."""
        settings, outer, momentum = self._settings, self._outer[fragment], self._momentum[fragment]
        difference = self._differences[fragment]
        momentum.mul_(settings.outer_momentum).add_(difference)
        step = difference.add_(momentum, alpha=settings.outer_momentum)  # Nesterov looks one momentum ahead
        _mix(self._ctx.model.parameters[fragment], settings.mix, outer.sub_(step, alpha=settings.outer_lr))


def _mix(own: Tensor, weight: float, new: Tensor) -> None:
    if weight:
        own.mul_(weight).add_(new, alpha=1 - weight)
    else:
        own.copy_(new)


def _check_whole(argument: str, value: object, least: int, most: int, why: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        bound = f"must be a whole number from {least} to {most}"
        raise ConfigurationError(argument, bound, value, f"it must be {why}")
