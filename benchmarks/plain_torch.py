"""Processes that train the same model with plain torch: with DistributedDataParallel, without communication, or custom.

They are started once, and wait at a pipe for a request to run some steps, so that both sides can alternate.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.mlp import SAMPLES, build_model, cross_entropy, make_data, make_optimizer

DDP, ALONE = "ddp", "alone"
DEADLINE_S = 180.0


Serve = Callable[[int, int, str, Connection], None]
"""Main function of a process. Arguments: rank, number of processes, rendezvous path, and the pipe for requests."""


class PlainTorch:
    """One process per worker, each with a model for DDP and one without communication, or as `serve` defines."""

    def __init__(self, workers: int, serve: Serve | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        # The start takes one second instead of ten.
        context.set_forkserver_preload(["benchmarks.plain_torch"])
        self._folder = tempfile.TemporaryDirectory()
        meeting_point = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve or _serve, args=(rank, workers, meeting_point, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, kind: str, steps: int) -> list[list[float]]:
        """Return the end of each step of each worker, on the machine's monotonic clock.

        Raise an error if a process dies or hangs.
        """
        for pipe in self._pipes:
            pipe.send((kind, steps))
        return [self._answer(pipe) for pipe in self._pipes]

    def _answer(self, pipe: Connection) -> list[float]:
        if pipe.poll(DEADLINE_S):
            try:
                ends_s: list[float] = pipe.recv()
                return ends_s
            except EOFError:
                pass
        for process in self._processes:
            process.kill()
        raise RuntimeError(f"a process of plain torch died, or gave no answer within {DEADLINE_S:g} s")

    def __enter__(self) -> PlainTorch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()
        self._folder.cleanup()


class PlainTrainer:
    """A model and its optimizer in a plain training loop."""

    def __init__(self, model: nn.Module, data: tuple[Tensor, Tensor], rank: int, workers: int) -> None:
        self._model = model
        self._optimizer = make_optimizer(model.parameters())
        self._images, self._labels = data
        self._batches = self._endless_batches(rank, workers)

    def run(self, steps: int) -> list[float]:
        ends_s = []
        for _ in range(steps):
            self._step(next(self._batches))
            ends_s.append(time.monotonic())
        return ends_s

    def _step(self, indices: Tensor) -> None:
        images, labels = self._images.index_select(0, indices), self._labels.index_select(0, indices)
        self._optimizer.zero_grad()
        loss = cross_entropy(self._model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        loss.item()  # Paceline reports every loss too

    def _endless_batches(self, rank: int, workers: int) -> Iterator[Tensor]:
        chance = torch.Generator().manual_seed(0)
        while True:
            order = torch.randperm(len(self._images), generator=chance)
            for start in range(rank * SAMPLES, len(order), SAMPLES * workers):
                yield order[start : start + SAMPLES]


class Trainer(Protocol):
    """Runs a number of steps, and returns the end of each."""

    def run(self, steps: int) -> list[float]: ...


def join(rank: int, workers: int, meeting_point: str) -> None:
    """Create the process group."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the fastest interface for processes of one machine
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=workers
    )


def _serve(rank: int, workers: int, meeting_point: str, pipe: Connection) -> None:
    data = make_data(workers)
    join(rank, workers, meeting_point)
    trainers = {
        DDP: PlainTrainer(DistributedDataParallel(build_model()), data, rank, workers),
        ALONE: PlainTrainer(build_model(), data, rank, workers),
    }
    obey(pipe, trainers)


def obey(pipe: Connection, trainers: Mapping[str, Trainer]) -> None:
    """Execute requests from the pipe until it is closed."""
    try:
        while True:
            kind, steps = pipe.recv()
            pipe.send(trainers[kind].run(steps))
    except EOFError:
        torch.distributed.destroy_process_group()
