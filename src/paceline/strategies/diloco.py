"""DiLoCo: every worker takes H local steps with the task's optimizer, then all take one outer step together.

The outer gradient is the parameters before the H steps minus the workers' mean after them. The outer optimizer is SGD
with Nesterov momentum. Inner optimizers keep their state. `outer_lr=1,outer_momentum=0` is `local-sgd`.

When: Very slow links between workers, large models, H in the hundreds.
Cost, n bytes and p workers: 2 n (p - 1)/p sent by each worker (ring) every H steps.
Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023. There AdamW is the
inner optimizer, H is 500, and the outer learning rate and momentum are 0.7 and 0.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.collectives import ALGORITHMS, all_reduce
from paceline.context import Context, Strategy
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.strategies.all_reduce import resolve_algorithm
from paceline.strategies.local_sgd import check_period, take_local_steps
from paceline.strategies.shared.search_space import tried


@dataclass(frozen=True, kw_only=True, slots=True)
class DiLoCo(Strategy):
    """Workers take many local steps, then one outer Nesterov step together."""

    period: int = field(
        default=50,
        metadata={"help": "local steps between two outer steps (H)", "tries": tried(10, 50, leads=True)},
    )
    outer_lr: float = field(default=0.7, metadata={"help": "learning rate of the outer steps"})
    outer_momentum: float = field(default=0.9, metadata={"help": "Nesterov momentum of the outer steps"})
    algorithm: str = field(
        default="auto", metadata={"help": f"how tensors are summed: {', '.join(ALGORITHMS)}"}
    )

    def __post_init__(self) -> None:
        check_period(self.period)
        if not 0 < self.outer_lr < float("inf"):
            raise ConfigurationError("outer_lr", "must be finite and above 0", self.outer_lr, "try 0.7")
        if not 0 <= self.outer_momentum < 1:
            bound = "must be at least 0 and below 1"
            raise ConfigurationError("outer_momentum", bound, self.outer_momentum, "try 0.9")
        if self.algorithm not in ALGORITHMS:
            raise UnknownNameError("algorithm", self.algorithm, ALGORITHMS)

    async def worker(self, ctx: Context) -> None:
        algorithm = resolve_algorithm(ctx, self.algorithm)
        parameters = ctx.model.parameters
        before = ctx.model.state("outer_parameters", like=parameters, initial=parameters)
        momentum = ctx.model.state("outer_momentum", like=parameters)

        async def outer_step() -> None:
            difference = before - ctx.model.parameters
            await all_reduce(ctx.net, difference, algorithm, op="mean")
            momentum.mul_(self.outer_momentum).add_(difference)
            step = difference.add_(momentum, alpha=self.outer_momentum)  # Nesterov looks one momentum ahead
            ctx.model.parameters.copy_(before.sub_(step, alpha=self.outer_lr))

        await take_local_steps(ctx, self.period, outer_step, algorithm)
