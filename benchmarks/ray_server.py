"""Two parameter servers of Ray actors, and a driver that passes on their references.

The first follows Ray's documentation ("Parameter Server" in the examples of Ray Core, docs.ray.io), with one flat
parameter as the model: weights are sent as a state dict, gradients as NumPy arrays, which are stacked and averaged (the
documentation sums them), and torch's optimizer takes the step. The second has less overhead than usual code. All
data are NumPy arrays, which Ray copies once less, and they are updated in place.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from benchmarks.vector import ASYNC, RATE, SYNC, WORKERS, Served, Vector, make_optimizer

_STORE_BYTES = 2**30


class RayServer:
    """A private Ray with a server and workers of each kind, and a model of `count` parameters."""

    def __init__(self, count: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics from a benchmark
        ray.init(
            num_cpus=WORKERS + 1,
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            logging_level=logging.ERROR,
        )
        self._actors: dict[bool, tuple[Any, list[Any]]] = {
            is_lean: (
                ray.remote(server).remote(count),
                [ray.remote(worker).remote(count) for _ in range(WORKERS)],
            )
            for is_lean, server, worker in (
                (False, _DocumentedServer, _DocumentedWorker),
                (True, _LeanServer, _LeanWorker),
            )
        }

    def run(self, kind: str, rounds: int, *, is_lean: bool = False) -> Served:
        """Let every worker push and pull `rounds` times."""
        server, workers = self._actors[is_lean]
        current = server.reset.remote()
        {ASYNC: _run_async, SYNC: _run_sync}[kind](server, workers, rounds, current)
        ends_s, weights = ray.get(server.look.remote())
        return Served(ends_s, torch.tensor(weights))

    def __enter__(self) -> RayServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ray.shutdown()


def _run_async(server: Any, workers: Sequence[Any], rounds: int, current: Any) -> None:
    gradients = {worker.compute_gradients.remote(current): worker for worker in workers}
    for number in range(rounds * WORKERS):
        ready, _ = ray.wait(list(gradients))
        worker = gradients.pop(ready[0])
        current = server.apply_gradients.remote(ready[0])
        if number < (rounds - 1) * WORKERS:
            gradients[worker.compute_gradients.remote(current)] = worker


def _run_sync(server: Any, workers: Sequence[Any], rounds: int, current: Any) -> None:
    for _ in range(rounds):
        gradients = [worker.compute_gradients.remote(current) for worker in workers]
        current = server.apply_gradients.remote(*gradients)


class _DocumentedServer:
    def __init__(self, count: int) -> None:
        torch.set_num_threads(1)
        self._model = Vector(count)
        self._optimizer = make_optimizer(self._model.parameters())
        self._ends_s: list[float] = []

    def apply_gradients(self, *gradients: list[np.ndarray]) -> dict[str, Tensor]:
        means = [np.stack(parts).sum(axis=0) / len(gradients) for parts in zip(*gradients, strict=True)]
        self._optimizer.zero_grad()
        for parameter, mean in zip(self._model.parameters(), means, strict=True):
            parameter.grad = torch.from_numpy(mean)
        self._optimizer.step()
        self._ends_s.append(time.monotonic())
        return self._weights()

    def reset(self) -> dict[str, Tensor]:
        with torch.no_grad():
            self._model.weight.zero_()
        self._ends_s = []
        return self._weights()

    def look(self) -> tuple[list[float], np.ndarray]:
        return self._ends_s, self._model.weight.detach().numpy()

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor.cpu() for name, tensor in self._model.state_dict().items()}


class _DocumentedWorker:
    def __init__(self, count: int) -> None:
        torch.set_num_threads(1)
        self._model = Vector(count)
        self._gradient = np.zeros(count, np.float32)

    def compute_gradients(self, weights: dict[str, Tensor]) -> list[np.ndarray]:
        self._model.load_state_dict(weights)
        self._gradient.fill(1.0)
        return [self._gradient]


class _LeanServer:
    def __init__(self, count: int) -> None:
        self._weights = np.zeros(count, np.float32)
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


class _LeanWorker:
    def __init__(self, count: int) -> None:
        self._weights, self._gradient = (np.zeros(count, np.float32) for _ in range(2))

    def compute_gradients(self, weights: np.ndarray) -> np.ndarray:
        self._weights[:] = weights  # like loading a state dict
        self._gradient.fill(1.0)
        return self._gradient
