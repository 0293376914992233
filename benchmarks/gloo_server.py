"""A parameter server on torch.distributed with Gloo: `send` and `recv` between a server and its workers.

The processes are started once, and wait at a pipe for a request to run a block, so that both sides can alternate.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.vector import ASYNC, RATE, SYNC, WORKERS, Served

IN_TURN = "in turn"
"""Not the same as `async`, because the server waits for each worker in turn. It is the fastest way with Gloo."""
_SERVER = WORKERS


class GlooServer:
    """A server and its workers, with a model of `count` parameters."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.gloo_server"])  # starts in one second instead of ten
        self._folder = tempfile.TemporaryDirectory()
        meeting_point = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(WORKERS + 1):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, count, meeting_point, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, kind: str, rounds: int) -> Served:
        """Let every worker push and pull `rounds` times."""
        for pipe in self._pipes:
            pipe.send((kind, rounds))
        *_, served = [pipe.recv() for pipe in self._pipes]
        return Served(served[0], torch.from_numpy(served[1]))

    def __enter__(self) -> GlooServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()
        self._folder.cleanup()


def _serve(rank: int, count: int, meeting_point: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the fastest interface for processes of one machine
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=WORKERS + 1)
    program = _Server(count) if rank == _SERVER else _Worker(count)
    try:
        while True:
            kind, rounds = pipe.recv()
            pipe.send(program.run(kind, rounds))
    except EOFError:
        dist.destroy_process_group()


class _Worker:
    def __init__(self, count: int) -> None:
        self._parameters, self._gradient = torch.zeros(count), torch.zeros(count)

    def run(self, _kind: str, rounds: int) -> None:
        for _ in range(rounds):
            self._gradient.fill_(1.0)
            dist.send(self._gradient, _SERVER)
            dist.recv(self._parameters, _SERVER)


class _Server:
    def __init__(self, count: int) -> None:
        self._parameters = torch.zeros(count)
        # One buffer per worker, so that a gradient can arrive while another is applied.
        self._gradients = [torch.zeros(count) for _ in range(WORKERS)]
        self._ends_s: list[float] = []

    def run(self, kind: str, rounds: int) -> tuple[list[float], object]:
        self._ends_s = []
        self._parameters.zero_()
        programs: dict[str, Callable[[int], None]] = {
            ASYNC: self._serve_any,
            IN_TURN: self._serve_in_turn,
            SYNC: self._serve_all,
        }
        programs[kind](rounds)
        return self._ends_s, self._parameters.numpy()

    def _serve_any(self, rounds: int) -> None:
        gradient = self._gradients[0]
        for _ in range(rounds * WORKERS):
            worker = dist.recv(gradient)
            self._update(gradient)
            dist.send(self._parameters, worker)

    def _serve_in_turn(self, rounds: int) -> None:
        coming = self._listen()
        for number in range(rounds):
            for worker, gradient in enumerate(self._gradients):
                coming[worker].wait()
                self._update(gradient)
                if number + 1 < rounds:
                    coming[worker] = _irecv(gradient, worker)
                dist.send(self._parameters, worker)

    def _serve_all(self, rounds: int) -> None:
        for _ in range(rounds):
            for work, gradient in zip(self._listen(), self._gradients, strict=True):
                work.wait()
                self._parameters.add_(gradient, alpha=-RATE / WORKERS)
            self._ends_s.append(time.monotonic())
            for work in [_isend(self._parameters, worker) for worker in range(WORKERS)]:
                work.wait()

    def _listen(self) -> list[dist.Work]:
        return [_irecv(gradient, worker) for worker, gradient in enumerate(self._gradients)]

    def _update(self, gradient: Tensor) -> None:
        self._parameters.add_(gradient, alpha=-RATE)
        self._ends_s.append(time.monotonic())


def _irecv(tensor: Tensor, source: int) -> dist.Work:
    work = dist.irecv(tensor, source)
    assert work is not None
    return work


def _isend(tensor: Tensor, to: int) -> dist.Work:
    work = dist.isend(tensor, to)
    assert work is not None
    return work
