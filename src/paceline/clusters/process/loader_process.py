"""Loader: a process that loads requested batches, one after the other."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

import numpy as np
import torch

from paceline.clusters.process import payload
from paceline.clusters.process.channel import Channel, ChannelClosed
from paceline.clusters.process.offspring import dies_with_parent
from paceline.data.samples import Samples

_ENDED_S = 1.0  # a process that has closed its socket ends immediately, unless it hangs in the kernel


class LoaderProcess:
    """A loader, seen from its rank. It is forked from the rank and inherits its memory."""

    def __init__(self, number: int, samples: Samples, patience_s: float) -> None:
        """Fork a loader. `patience_s` is the longest pause within a message."""
        self.number = number
        self.asked = 0
        """Number of requested batches without an answer."""
        ours, theirs = socket.socketpair()
        rank = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _become_loader(rank, samples, theirs)
        theirs.close()
        self.channel = Channel(ours, patience_s)

    def has_answered(self, timeout_s: float) -> bool:
        """Return whether a message arrives within the timeout, or the loader has ended."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def ending(self) -> str:
        """Reap the process. Return a description of how it ended."""
        until_s = time.monotonic() + _ENDED_S
        pid = status = 0
        while not pid and time.monotonic() < until_s:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            time.sleep(0 if pid else 0.001)
        if not pid:
            return "makes no progress"
        self.pid = 0
        if os.WIFSIGNALED(status):
            return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"ended with exit code {os.waitstatus_to_exitcode(status)}"

    def end(self) -> None:
        """Kill the loader. It has no work to finish."""
        self.channel.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def flush_output() -> None:
    """Flush the output of the user's code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def _become_loader(rank: int, samples: Samples, endpoint: socket.socket) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rank ends its loaders
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if dies_with_parent(rank):
            torch.set_num_threads(1)  # the rank's threads do not exist in its child
            gc.freeze()  # otherwise the garbage collector would write to every page, and so copy it
            _serve(samples, Channel(endpoint))
    except ChannelClosed:  # the rank has closed its end
        code = 0
    finally:
        os._exit(code)


def _serve(samples: Samples, channel: Channel) -> NoReturn:
    while True:
        letter = channel.receive()
        number, indices = letter.values["number"], np.frombuffer(letter.blobs[0], np.int64)
        answer = {"letter": letter.values["letter"]}
        try:
            memory = payload.store(samples.load(indices, number), files=False)
        except Exception as error:
            channel.send("failed", answer | {"why": f"{type(error).__name__}: {error}"})
        else:
            channel.send("loaded", answer | {"nbytes": memory.nbytes}, fds=[memory.fd])
            memory.close_fd()
            del memory
        flush_output()
