"""Trial of the task before a run with checkpoints starts: is it still the task of the checkpoint?

It sketches a few samples, and the losses of the untrained model for some of them. They reveal changes that are not
visible in the task's settings: other samples of the same shape, another function in `forward`, another loss of the
same name.

The trial runs the user's code, which may have state and side effects. So it runs in a forked child process: its changes
in memory end with the child. Anything that cannot be determined (an error, a timeout, random samples) is left out and
not compared.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import logging
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.clusters.base.job import Job
from paceline.clusters.process.offspring import dies_with_parent
from paceline.clusters.rank.sketch import are_close, is_same, rounded, sketch, spread, weights_digest
from paceline.context import Batch
from paceline.data.samples import Samples
from paceline.model.compiling import is_compiled
from paceline.model.portable import module_in_place
from paceline.model.steps import UserStep
from paceline.system.seeding import seed_all
from paceline.task.calls import loss_of
from paceline.task.fingerprint import changes

_log = logging.getLogger("paceline")

_SAMPLES = 16
_PAIRS = 4
"""Number of losses. Each one is computed from two samples."""
_DEADLINE_S = 30.0
_NAMED = 3


def try_task(job: Job, samples: Samples) -> dict[str, Any]:
    """Sketch the task's samples and losses. Nothing in this process changes."""
    if samples.is_stream:  # reading a stream would consume it
        return {}
    reading, writing = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _become_child(parent, writing, job, samples)
    os.close(writing)
    try:
        lines = _read_all(reading)
    finally:
        os.close(reading)
        _end(child)
    found: dict[str, Any] = {}
    for line in lines:
        found |= json.loads(line)
    return found


def compare_trials(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a text for each difference."""
    counts = [{"number of samples": str(each["count"])} if "count" in each else {} for each in (before, now)]
    differ = changes(counts[0], counts[1])
    there, here = before.get("samples", {}), now.get("samples", {})
    others = [name for name in there if name in here and not is_same(there[name], here[name])]
    if not differ and others:
        parts = ", ".join(f"part {name!r}" if name else "all of it" for name in others[:_NAMED])
        differ = [f"the values of data have changed ({parts} of the compared samples differ)"]
    return differ or _other_losses(before, now)


def _other_losses(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Compare losses of equal untrained weights. A model with random initial weights is not compared."""
    if before.get("weights", "") != now.get("weights") or are_close(before["losses"], now["losses"]):
        return []
    was, is_now = (", ".join(map(str, each["losses"])) for each in (before, now))
    return [
        f"the computation of model, loss or step has changed: losses of the untrained model were {was} "
        f"and are {is_now} now"
    ]


# In the child


def _become_child(parent: int, writing: int, job: Job, samples: Samples) -> None:
    code = 1
    try:
        for signum in (signal.SIGINT, signal.SIGTERM):  # the parent ends the child
            signal.signal(signum, signal.SIG_IGN)
        if dies_with_parent(parent):
            _part_from_parent()
            with os.fdopen(writing, "w") as out:
                for facts in _facts(job, samples):
                    print(json.dumps(facts), file=out, flush=True)
            code = 0
    finally:
        os._exit(code)


def _part_from_parent() -> None:
    """Prepare the child: discard its output, replace threads lost in the fork, disable the garbage collector,
    reopen files."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    sys.stdout = sys.stderr = os.fdopen(nowhere, "w")
    torch.set_num_threads(1)
    gc.freeze()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            _open_again(fd)


def _open_again(fd: int) -> None:
    """Reopen a file. A forked child shares the offset of an open file; a reopened file has its own offset."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        own = os.open(f"/proc/self/fd/{fd}", fcntl.fcntl(fd, fcntl.F_GETFL))
        os.lseek(own, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(own, fd, inheritable=False)
        os.close(own)


def _facts(job: Job, samples: Samples) -> Iterator[dict[str, Any]]:
    """Yield the facts one by one. If a fact fails or takes too long, the earlier facts are used."""
    count = samples.count
    yield {"count": count}
    first, second = (sketch(samples.content(_batch(spread(count, _SAMPLES)), number)) for number in (1, 2))
    yield {"samples": {name: each for name, each in first.items() if is_same(each, second.get(name))}}
    if first.keys() == second.keys() and all(is_same(first[name], second[name]) for name in first):
        yield _losses(job, samples)


def _losses(job: Job, samples: Samples) -> dict[str, Any]:
    """Return losses of the untrained model in evaluation mode, without autocast. Empty if they are random."""
    assert job.task is not None
    module = module_in_place(job.task, job.seed).eval()
    types = {parameter.dtype for parameter in module.parameters()}
    if is_compiled(module) or not types <= {torch.float32, torch.float64}:
        return {}
    pairs = np.array_split(spread(samples.count, 2 * _PAIRS), _PAIRS)
    batches = [_batch(pair, turn) for pair in pairs if len(pair) for turn in range(len(job.task.turns) or 1)]
    first, second = (
        rounded([_loss(job, module, samples, each, seed) for each in batches]) for seed in (1, 2)
    )
    if not are_close(first, second) or set(first) == {None}:
        return {}
    return {"losses": first, "weights": weights_digest(module)}


def _loss(job: Job, module: nn.Module, samples: Samples, batch: Batch, seed: int) -> float:
    task = job.task
    assert task is not None
    content = samples.content(batch, seed)
    seed_all(seed)
    if task.step is None:
        return float(loss_of(task, module, content))
    buffers: list[Tensor] = list(module.buffers())
    return float(UserStep(task, module, lambda: buffers).loss(module, batch, content).value)


def _batch(indices: np.ndarray, step: int = 0) -> Batch:
    return Batch(step, 0, len(indices), len(indices), lambda _: indices)


# In the parent


def _read_all(reading: int) -> list[str]:
    """Return the complete lines that arrive before the child ends or the deadline passes."""
    until_s, text = time.monotonic() + _DEADLINE_S, b""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while poll.poll(1000 * max(0.0, until_s - time.monotonic())):
        received = os.read(reading, 2**16)
        if not received:
            return text.decode().splitlines()
        text += received
    _log.info("the trial of the task took more than %g s: not all of it can be compared", _DEADLINE_S)
    return text.decode().rpartition("\n")[0].splitlines()


def _end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
