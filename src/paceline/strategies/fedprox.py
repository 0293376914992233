"""FedProx: federated averaging with a proximal term, which pulls the clients towards the round's model.

A client minimises its loss plus mu/2 times the squared distance of its parameters from the round's model. This adds mu
times their difference to its gradient. With mu=0 this is `fedavg`.

When: As fedavg, if the clients' data differ strongly, because the clients then drift apart less.
Cost: As fedavg.
Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.errors import ConfigurationError
from paceline.strategies.fedavg import FedAvg

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class FedProx(FedAvg):
    """Federated averaging with clients pulled towards the round's model."""

    mu: float = field(default=0.1, metadata={"help": "weight of the proximal term"})

    def __post_init__(self) -> None:
        FedAvg.__post_init__(self)
        if not 0 <= self.mu < math.inf:
            raise ConfigurationError("mu", "must be finite and at least 0", self.mu, "0 is fedavg")

    def adjust(self, gradient: Tensor, parameters: Tensor, model: Tensor) -> None:
        gradient.add_(parameters, alpha=self.mu).sub_(model, alpha=self.mu)
