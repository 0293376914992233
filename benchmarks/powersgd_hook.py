"""The baseline of PowerSGD: torch's `powerSGD_hook` with DistributedDataParallel on Gloo, if wanted on a paced link.

Both sides train on points around ten centres, so that there is an accuracy to compare. On a paced link an all-reduce
takes at least the time of a ring: 2 (p - 1) messages of n/p bytes. A thread carries them one after the other, so
transfers overlap with the backward pass, as on a network.
"""

from __future__ import annotations

import queue
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import paceline as pl
from benchmarks.mlp import SAMPLES, build_model
from benchmarks.plain_torch import PlainTrainer, join, obey

LINK = pl.Link(bandwidth="100Mbps", latency="50us")
RANK = 2
FREE, PACED, ACCURACY = "free", "paced", "accuracy"
_STEPS_PER_EPOCH = 16
_TESTED = 1000
_APART = 0.16  # scale of the centres: some points are nearer to another one


def make_points(workers: int, *, test: bool = False) -> tuple[Tensor, Tensor]:
    """Return points and the numbers of their centres. Also limits the worker to one thread."""
    torch.set_num_threads(1)
    centres = _APART * torch.randn(10, 784, generator=torch.Generator().manual_seed(0))
    chance = torch.Generator().manual_seed(2 if test else 1)
    count = _TESTED if test else SAMPLES * workers * _STEPS_PER_EPOCH
    labels = torch.randint(0, 10, (count,), generator=chance)
    return centres[labels] + torch.randn(count, 784, generator=chance), labels


def accuracy_of(model: nn.Module) -> float:
    images, labels = make_points(1, test=True)
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


class _Wire:
    """Carries all-reduces one after the other, each in the time of a ring on the link."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._all_reduce = torch.distributed.all_reduce
        self._waiting: queue.SimpleQueue[tuple[Tensor, torch.futures.Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._carry, daemon=True).start()

    def all_reduce(self, tensor: Tensor, *_: object, **__: object) -> _Wire._Work:
        future: torch.futures.Future[Any] = torch.futures.Future()
        self._waiting.put((tensor, future))
        return self._Work(future)

    class _Work:
        """What an asynchronous all-reduce returns."""

        def __init__(self, future: torch.futures.Future[Any]) -> None:
            self._future = future

        def get_future(self) -> torch.futures.Future[Any]:
            return self._future

    def _carry(self) -> None:
        while True:
            tensor, future = self._waiting.get()
            end_s = time.monotonic() + self._seconds(tensor.nbytes)
            self._all_reduce(tensor)
            time.sleep(max(0.0, end_s - time.monotonic()))
            # The hook's callbacks wait for further all-reduces, so they run in another thread.
            threading.Thread(target=future.set_result, args=([tensor],), daemon=True).start()

    def _seconds(self, nbytes: int) -> float:
        messages = 2 * (self._workers - 1)
        return messages * (LINK.latency_s + nbytes / self._workers * LINK.seconds_per_byte)


class _Trainer:
    """A new model in each run, with the hook. The result is the end of each step."""

    def __init__(self, rank: int, workers: int, wire: _Wire | None) -> None:
        self._rank, self._workers = rank, workers
        self._wire = wire
        self._all_reduce = torch.distributed.all_reduce
        self.accuracy = 0.0

    def run(self, steps: int) -> list[float]:
        torch.distributed.all_reduce = self._all_reduce if self._wire is None else self._wire.all_reduce
        torch.manual_seed(0)
        # One bucket: with several, ranks may start the hook's all-reduces in different orders, and Gloo fails.
        model = DistributedDataParallel(build_model(), bucket_cap_mb=100)
        # The hook needs two steps without compression for its error feedback.
        state = PowerSGDState(process_group=None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook)
        ends_s = PlainTrainer(model, make_points(self._workers), self._rank, self._workers).run(steps)
        torch.distributed.all_reduce = self._all_reduce
        self.accuracy = accuracy_of(model.module)
        return ends_s


class _Accuracy:
    """Returns the accuracies after the last run of each trainer."""

    def __init__(self, *trainers: _Trainer) -> None:
        self._trainers = trainers

    def run(self, steps: int) -> list[float]:
        return [trainer.accuracy for trainer in self._trainers]


def serve(rank: int, workers: int, meeting_point: str, pipe: Connection) -> None:
    """Main function of a process: see `benchmarks.plain_torch`."""
    torch.set_num_threads(1)
    join(rank, workers, meeting_point)
    free, paced = _Trainer(rank, workers, None), _Trainer(rank, workers, _Wire(workers))
    obey(pipe, {FREE: free, PACED: paced, ACCURACY: _Accuracy(free, paced)})
