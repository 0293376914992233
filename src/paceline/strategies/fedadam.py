"""FedAdam: federated averaging with Adam on the server. The clients' mean difference is the descent direction.

For each parameter with mean difference d: m = beta1 m + (1 - beta1) d; v = beta2 v + (1 - beta2) d^2, starting from
tau^2; the server adds server_lr m / (sqrt(v) + tau). There is no bias correction. A smaller tau is more adaptive. The
best server_lr depends on the size of the differences and must be tuned.

When: As fedavg, for models that Adam trains better than SGD.
Cost: As fedavg.
Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021,
algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.context import Model
from paceline.errors import ConfigurationError
from paceline.strategies.fedavg import FedAvg
from paceline.strategies.shared.federated.messages import Update

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAdam(FedAvg):
    """Federated averaging with Adam on the server."""

    server_lr: float = field(default=0.01, metadata={"help": "the server's learning rate (eta)"})
    beta1: float = field(default=0.9, metadata={"help": "decay of the mean difference per round"})
    beta2: float = field(
        default=0.99, metadata={"help": "decay of the mean square of the difference per round"}
    )
    tau: float = field(default=1e-3, metadata={"help": "tau: constant added to the root of the mean square"})

    def __post_init__(self) -> None:
        FedAvg.__post_init__(self)
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigurationError(name, "must be at least 0 and below 1", value, "0.9 is usual")
        if not 0 < self.tau < math.inf:
            raise ConfigurationError("tau", "must be finite and above 0", self.tau, "0.001 is usual")

    def server_update(self, model: Model) -> Update:
        parameters = model.parameters
        mean = model.state("mean", like=parameters)
        first_square = parameters.clone().fill_(self.tau**2)
        square = model.state("square", like=parameters, initial=first_square)

        def update(difference: Tensor) -> None:
            mean.lerp_(difference, 1 - self.beta1)
            square.mul_(self.beta2).addcmul_(difference, difference, value=1 - self.beta2)
            parameters.addcdiv_(mean, square.sqrt().add_(self.tau), value=self.server_lr)

        return update
