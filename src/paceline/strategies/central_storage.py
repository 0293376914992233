"""Central storage: only the server stores the parameters; workers hold them for one step and then free them.

The weights are the same as with `sync`. From its push until the next parameters arrive, a worker has no memory
allocated for them. The server therefore has the only permanent copy of parameters and optimizer state. With
`placement="worker"` the first worker is the server, like the CPU of a machine with several accelerators.

When: Workers have little memory, and one rank has a lot.
Cost: as `sync`. Workers need memory for parameters only while they compute.
Source: TensorFlow's CentralStorageStrategy ("Distributed training with TensorFlow").
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.shared.push_pull.policy import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class CentralStorage(ParameterServer):
    """Like sync, but workers hold the parameters only while they compute."""

    def policy(self, workers: int) -> Policy:
        return Policy(k=workers, keeps=False)
