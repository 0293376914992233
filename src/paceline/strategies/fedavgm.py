"""FedAvgM: federated averaging with momentum on the server.

The server multiplies its velocity by `momentum`, adds the clients' mean difference, and adds the velocity to the
parameters. With momentum=0 this is `fedavg`.

When: As fedavg, if the differences vary strongly between rounds, because momentum smooths them.
Cost: As fedavg.
Source: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
2019.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.context import Model
from paceline.errors import ConfigurationError
from paceline.strategies.fedavg import FedAvg
from paceline.strategies.shared.federated.messages import Update

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAvgM(FedAvg):
    """Federated averaging with momentum on the server."""

    momentum: float = field(default=0.9, metadata={"help": "decay of the server's velocity per round"})

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
