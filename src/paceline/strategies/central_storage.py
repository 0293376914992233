"""Central storage: parameters live at the server alone; workers get them for a step and drop them after it.

The mathematics is that of `sync`. Between its push and the next parameters a worker holds no memory for them, so the
model's state (parameters and what the optimizer remembers) exists once, wherever the server is. With
`placement="worker"` that is the first worker's memory, as on the CPU of one machine with several accelerators.

When: Workers with little memory beside one that has much.
Cost: as `sync`; memory for parameters at the workers only while they compute.
Source: TensorFlow's CentralStorageStrategy ("Distributed training with TensorFlow").
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.push_pull.policy import Policy

__all__ = ["CentralStorage"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CentralStorage(ParameterServer):
    """As sync, but workers hold the parameters only while they compute."""

    def policy(self, workers: int) -> Policy:
        return Policy(k=workers, keeps=False)
