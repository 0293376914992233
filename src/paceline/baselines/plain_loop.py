"""What every baseline shares: an ordinary training loop with the user's own model and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import nn

from paceline.clusters.local.local import Local
from paceline.clusters.process.context import ProcessContext
from paceline.costs.link import Link
from paceline.errors import ConfigurationError
from paceline.model.engines.torch_engine import TorchEngine
from paceline.task.checks import waits_for_metric
from paceline.task.task import Task


def check_cluster(cluster: object, name: str) -> None:
    """Refuse a cluster on which the baseline cannot run."""
    remedy = "baselines run in real processes, and cannot use an emulated link"
    if not isinstance(cluster, Local):
        raise ConfigurationError("cluster", f"must be a pl.Local for {name}", cluster, remedy)
    if isinstance(cluster.link, Link):
        raise ConfigurationError("link", f'must be "shared-memory" for {name}', cluster.link, remedy)
    if cluster.device != "cpu":
        remedy = "baselines compute, and send messages, in host memory"
        raise ConfigurationError("device", f'must be "cpu" for {name}', cluster.device, remedy)


def check_task(task: Task, name: str) -> None:
    """Refuse arguments that the baseline would silently ignore."""
    own = {
        "step": task.step is not None,
        "optimizer": isinstance(task.optimizer, Mapping),
        "accumulate": task.accumulate > 1,
        "ema": task.ema is not None,
        "schedule_every": task.schedule_every != "step",
        "compile": task.compile,
    }
    for argument in (argument for argument, is_given in own.items() if is_given):
        remedy = "omit the baseline: it is a plain loop with a loss and one optimizer"
        raise ConfigurationError(argument, f"must not be given for {name}", getattr(task, argument), remedy)


class PlainLoop:
    """Model, optimizer and schedule of a rank. The rank evaluates and returns this model."""

    def __init__(self, ctx: ProcessContext, name: str) -> None:
        assert ctx.job.task is not None
        self.task = ctx.job.task
        self.module = self.task.build_model(ctx.job.seed)
        ctx.model.replica.build()
        self.engine = cast(TorchEngine, ctx.model.replica.engine)
        self.engine.module = self.module
        self._optimizer = self.task.build_optimizer(self.module)
        self._schedule = self.task.build_schedule(self._optimizer)
        if waits_for_metric(self._schedule):
            remedy = "choose a schedule that is stepped by updates"
            raise ConfigurationError("schedule", f"must not need a metric for {name}", self._schedule, remedy)
        self.trainable = [p for p in self.module.parameters() if p.requires_grad]
        self.gradient_bytes = sum(p.numel() * p.element_size() for p in self.trainable)

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def update(self) -> None:
        if self.task.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.trainable, self.task.clip_norm)
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()
