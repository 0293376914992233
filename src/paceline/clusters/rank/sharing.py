"""Evaluations shared among the workers, if each worker holds the run's whole model after each step.

Test batches are dealt to the workers in turn. Each worker publishes the contributions of its batches to the
metrics. The reporter combines these parts in the order of the batches. So a metric is bitwise equal to an
evaluation by the reporter alone. This sends no messages: it is measuring, not training.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.clusters.rank.row_board import RowBoard
from paceline.model.evaluation import is_in_parts, put_together
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank
    from paceline.data.samples import Samples
    from paceline.model.replica import Replica


class SharedEvaluation:
    """Shared evaluation, on one worker.

    No worker completes the next step without the reporter. So no worker overwrites its row before the reporter has
    read the row.
    """

    def __init__(self, rank: Rank, samples: Samples) -> None:
        self._rank = rank
        self._samples = samples
        self._batches = _test_batches(rank, samples)
        self._own = range(rank.rank, self._batches, len(rank.workers))

    @classmethod
    def of(cls, rank: Rank) -> SharedEvaluation | None:
        """Return a shared evaluation. None if the reporter evaluates alone. All workers get the same answer."""
        job, task = rank.job, rank.job.task
        if job.regroups:  # its boards are not divided anew
            return None
        if task is None or not job.evaluate_every or not job.declared.in_step:
            return None
        if len(rank.workers) < 2 or task.ema is not None or not is_in_parts(task):
            return None
        samples = rank.test_samples
        if samples is None or _test_batches(rank, samples) < 2:
            return None
        return cls(rank, samples)

    @property
    def _replica(self) -> Replica:
        replica: Replica = self._rank.model.replica
        return replica

    def look(self) -> Tensor:
        """Return the contributions of this worker's batches to the metrics."""
        return self._replica.inspection.evaluate_parts(self._samples, self._own)

    async def evaluate(self) -> dict[str, float]:
        """Evaluate. All workers call this after the same step. Return the metrics on the reporter, {} on other
        ranks."""
        rank = self._rank
        if self._replica.buffers:
            await self._follow_buffers()
        start_s = rank.now()
        shown = self.look().flatten()
        self._parts_board.row(rank.rank)[: shown.numel()].copy_(shown)
        rank.span(Kind.EVALUATE, start_s, rank.now())
        await self._parts_board.pause()
        return self._put_together() if rank.is_reporter else {}

    def _put_together(self) -> dict[str, float]:
        rank, task = self._rank, self._replica.task
        start_s, workers = rank.now(), len(rank.workers)
        rows = self._parts_board.tensor.view(workers, -1, len(task.metrics()), 2)
        # By batch, then by worker.
        in_order = rows.transpose(0, 1).flatten(0, 1)
        found = put_together(task, in_order[: self._batches])
        rank.span(Kind.EVALUATE, start_s, rank.now())
        return found

    async def _follow_buffers(self) -> None:
        """Copy the reporter's buffers, such as BatchNorm statistics. The run's model has these buffers."""
        rank, board = self._rank, self._buffers_board
        start_s = rank.now()
        if rank.is_reporter:
            board.row(rank.rank).copy_(torch.cat(self._buffer_bytes()))
        rank.span(Kind.EVALUATE, start_s, rank.now())
        await board.pause()
        if rank.is_reporter:
            return
        start_s = rank.now()
        shown, at = board.tensor[0], 0
        for each in self._buffer_bytes():
            each.copy_(shown[at : at + each.numel()])
            at += each.numel()
        rank.span(Kind.EVALUATE, start_s, rank.now())

    def _buffer_bytes(self) -> list[Tensor]:
        return [each.view(torch.uint8) for each in self._replica.buffers]

    # Boards are opened on first use: the driver allocates their memory.

    @cached_property
    def _parts_board(self) -> RowBoard:
        most = math.ceil(self._batches / len(self._rank.workers))
        shape = (most * len(self._replica.task.metrics()) * 2,)
        return self._rank.open_row_board("test-parts", torch.empty(shape, dtype=torch.float64))

    @cached_property
    def _buffers_board(self) -> RowBoard:
        nbytes = sum(each.numel() for each in self._buffer_bytes())
        return self._rank.open_row_board("test-buffers", torch.empty(nbytes, dtype=torch.uint8))


def _test_batches(rank: Rank, samples: Samples) -> int:
    assert rank.job.task is not None
    return len(samples.ranges(rank.job.task.test_batch_size))
