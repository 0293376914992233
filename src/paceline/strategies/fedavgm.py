"""FedAvgM: federated averaging whose server has momentum.

The server adds the clients' mean difference to a velocity, which fades by `momentum` each round, and moves by that.
With momentum=0 it is `fedavg`.

When: As fedavg, where rounds point in different directions: momentum smooths them.
Cost: That of fedavg.
Source: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
2019.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.context import Model
from paceline.errors import ConfigurationError
from paceline.strategies.fedavg import FedAvg
from paceline.strategies.federated.messages import Update

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FedAvgM"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAvgM(FedAvg):
    """Federated averaging whose server moves with momentum."""

    momentum: float = field(
        default=0.9, metadata={"help": "what is left of the server's velocity each round"}
    )

    def __post_init__(self) -> None:
        FedAvg.__post_init__(self)
        if not 0 <= self.momentum < 1:
            bound = "must be at least 0 and below 1"
            raise ConfigurationError("momentum", bound, self.momentum, "0 is fedavg")

    def server_update(self, model: Model) -> Update:
        parameters = model.parameters
        velocity = model.state("velocity", like=parameters)

        def update(difference: Tensor) -> None:
            velocity.mul_(self.momentum).add_(difference)
            parameters.add_(velocity, alpha=self.server_lr)

        return update
