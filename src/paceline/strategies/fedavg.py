"""Federated averaging: each round some clients train the server's model on data of their own; their models' mean,
weighted by samples, is the next one.

A step is a round. Clients keep nothing from round to round: each begins with the round's model and a fresh optimizer of
the task. The task's learning-rate schedule goes by rounds, and holds still within one. The server averages differences,
which is the same as models where server_lr is 1. Buffers (BatchNorm's statistics and the like) are averaged too; those
of whole numbers are the first client's. A client that drops out, or dies, does not count.

When: Data that must stay where it is: many clients, few of them at a time.
Cost, n bytes, c clients a round: c n bytes out of the server's port and c n into it, a round.
Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017. With one full-batch step of every client it is gradient descent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from paceline.context import Context, Model, Strategy
from paceline.errors import ConfigurationError
from paceline.replica.partitions import KINDS, Partition, PartitionFunction
from paceline.strategies.federated.client import Client, LocalWork
from paceline.strategies.federated.messages import Update
from paceline.strategies.federated.server import FederatedServer

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FedAvg"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAvg(Strategy):
    """Clients train the server's model on their own data; the next is their mean."""

    expendable: ClassVar[tuple[str, ...]] = ("worker",)
    replicates: ClassVar[tuple[str, ...]] = ("worker", "server")

    fraction: float = field(default=1.0, metadata={"help": "share of the clients sampled in a round (C)"})
    epochs: int = field(default=1, metadata={"help": "passes over a client's own data in a round (E)"})
    batch: int | None = field(
        default=None,
        metadata={"help": "samples of a local step (B); 0: all of the client's; None: the task's"},
    )
    partition: str | PartitionFunction = field(
        default="iid",
        metadata={"help": f"how data is parted: {', '.join(KINDS)}, or a function (targets, clients, seed)"},
    )
    alpha: float = field(
        default=0.5, metadata={"help": "of the Dirichlet distribution: the smaller, the more uneven"}
    )
    shards_per_client: int = field(
        default=2, metadata={"help": "shards of sorted labels that a client is dealt"}
    )
    allow_empty: bool = field(default=False, metadata={"help": "whether clients may be left without data"})
    partition_seed: int = field(default=0, metadata={"help": "sets the partition, whatever the run's seed"})
    dropout: float = field(
        default=0.0, metadata={"help": "chance that a sampled client drops out of a round"}
    )
    server_lr: float = field(
        default=1.0, metadata={"help": "how far the server goes along the mean difference"}
    )

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ConfigurationError("fraction", "must be above 0 and at most 1", self.fraction, "1 is all")
        _check_whole("epochs", self.epochs, at_least=1)
        if self.batch is not None:
            _check_whole("batch", self.batch, at_least=0)
        if not 0 <= self.dropout < 1:
            bound = "must be at least 0 and below 1"
            raise ConfigurationError("dropout", bound, self.dropout, "nobody would be left")
        if not 0 < self.server_lr < math.inf:
            bound = "must be finite and above 0"
            raise ConfigurationError("server_lr", bound, self.server_lr, "1 is plain averaging")
        self.make_partition()

    def make_partition(self) -> Partition:
        return Partition(
            kind=self.partition,
            alpha=self.alpha,
            shards_per_client=self.shards_per_client,
            allow_empty=self.allow_empty,
            seed=self.partition_seed,
        )

    def roles(self, workers: int) -> Sequence[str]:
        return (*("worker",) * workers, "server")

    async def worker(self, ctx: Context) -> None:
        work = LocalWork(epochs=self.epochs, batch=self.batch, dropout=self.dropout, adjust=self.adjust)
        await Client(ctx, work, self.make_partition()).run()

    async def server(self, ctx: Context) -> None:
        await FederatedServer(ctx, self.fraction, self.server_update(ctx.model)).run()

    # What variants decide

    def adjust(self, gradient: Tensor, parameters: Tensor, model: Tensor) -> None:
        """Change a client's gradient before it is applied to its parameters; `model` is the round's."""

    def server_update(self, model: Model) -> Update:
        """What the server does to its parameters with the clients' mean difference."""

        def update(difference: Tensor) -> None:
            model.parameters.add_(difference, alpha=self.server_lr)

        return update


def _check_whole(argument: str, value: object, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigurationError(argument, f"must be a whole number of at least {at_least}", value)
