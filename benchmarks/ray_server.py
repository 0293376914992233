"""The parameter server of Ray's documentation, on NumPy arrays: actors, and a driver that passes on their references.

After "Parameter Server" in the examples of Ray Core (docs.ray.io), with one array for the model. The update is cheaper
than there: in place, without stacking the gradients.
"""

from __future__ import annotations

import logging
import os
import time
from types import TracebackType
from typing import Any

import numpy as np
import ray
import torch

from benchmarks.vector import ASYNC, PARAMETERS, RATE, SYNC, WORKERS, Served

__all__ = ["RayServer"]

_STORE_BYTES = 2**30


class RayServer:
    """A Ray of its own, with a server and its workers."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a benchmark tells nobody that it runs
        ray.init(
            num_cpus=WORKERS + 1,
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            logging_level=logging.ERROR,
        )
        self._server = ray.remote(_ParameterServer).remote()
        self._workers = [ray.remote(_Worker).remote() for _ in range(WORKERS)]

    def run(self, kind: str, rounds: int) -> Served:
        """Let every worker push and pull so many times."""
        current = self._server.reset.remote()
        {ASYNC: self._run_async, SYNC: self._run_sync}[kind](rounds, current)
        ends_s, weights = ray.get(self._server.look.remote())
        return Served(ends_s, torch.tensor(weights))

    def _run_async(self, rounds: int, current: Any) -> None:
        gradients = {worker.compute_gradients.remote(current): worker for worker in self._workers}
        for number in range(rounds * WORKERS):
            ready, _ = ray.wait(list(gradients))
            worker = gradients.pop(ready[0])
            current = self._server.apply_gradients.remote(ready[0])
            if number < (rounds - 1) * WORKERS:
                gradients[worker.compute_gradients.remote(current)] = worker

    def _run_sync(self, rounds: int, current: Any) -> None:
        for _ in range(rounds):
            gradients = [worker.compute_gradients.remote(current) for worker in self._workers]
            current = self._server.apply_gradients.remote(*gradients)

    def __enter__(self) -> RayServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ray.shutdown()


class _ParameterServer:
    def __init__(self) -> None:
        self._weights = np.zeros(PARAMETERS, np.float32)
        self._change = np.zeros_like(self._weights)
        self._ends_s: list[float] = []

    def apply_gradients(self, *gradients: np.ndarray) -> np.ndarray:
        for gradient in gradients:
            np.multiply(gradient, np.float32(RATE / len(gradients)), out=self._change)
            self._weights -= self._change
        self._ends_s.append(time.monotonic())
        return self._weights

    def reset(self) -> np.ndarray:
        self._weights.fill(0.0)
        self._ends_s = []
        return self._weights

    def look(self) -> tuple[list[float], np.ndarray]:
        return self._ends_s, self._weights


class _Worker:
    def __init__(self) -> None:
        self._weights, self._gradient = (np.zeros(PARAMETERS, np.float32) for _ in range(2))

    def compute_gradients(self, weights: np.ndarray) -> np.ndarray:
        self._weights[:] = weights  # as a model's state is loaded
        self._gradient.fill(1.0)
        return self._gradient
