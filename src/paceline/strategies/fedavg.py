"""Federated averaging: in each round some clients train the server's model on their own data; the next model is the
mean of their models, weighted by samples.

A step is a round. Clients are stateless: each round starts with the server's model and a fresh optimizer. The task's
learning-rate schedule advances by rounds; within a round the learning rate is constant. The server averages
differences, which equals averaging models if server_lr is 1. Buffers such as BatchNorm statistics are averaged too;
integer buffers are taken from the first client. A client that drops out or dies is left out of the mean.

When: Data must stay on the clients; there are many clients, and few of them take part at a time.
Cost, n bytes, c clients per round: c n bytes out of the server's port and c n into it, per round.
Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017. With one full-batch step of every client it is gradient descent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from paceline.collectives.coded import coded
from paceline.context import Context, Model, Strategy
from paceline.data.partitions import KINDS, Partition, PartitionFunction
from paceline.errors import ConfigurationError
from paceline.strategies.shared.codec import codec_field, keeps_residuals, set_codec
from paceline.strategies.shared.federated.client import Client, LocalWork, drops_out
from paceline.strategies.shared.federated.messages import Update
from paceline.strategies.shared.federated.server import FederatedServer, sample_clients
from paceline.strategies.shared.search_space import Scope

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from paceline.data.samples import Samples


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAvg(Strategy):
    """Clients train the server's model on their own data; the server averages."""

    expendable: ClassVar[tuple[str, ...]] = ("worker",)

    fraction: float = field(default=1.0, metadata={"help": "fraction of the clients sampled in a round (C)"})
    epochs: int = field(default=1, metadata={"help": "passes over a client's own data in a round (E)"})
    batch: int | None = field(
        default=None,
        metadata={
            "help": "batch size of a local step (B); 0: all samples of the client; default: the task's"
        },
    )
    partition: str | PartitionFunction = field(
        default="iid",
        metadata={"help": f"how data is divided: {', '.join(KINDS)}, or a function (targets, clients, seed)"},
    )
    alpha: float = field(
        default=0.5, metadata={"help": "parameter of the Dirichlet distribution; smaller is more uneven"}
    )
    shards_per_client: int = field(
        default=2, metadata={"help": "shards of label-sorted data for each client"}
    )
    allow_empty: bool = field(default=False, metadata={"help": "allow clients without data"})
    partition_seed: int = field(
        default=0, metadata={"help": "seed of the partition, independent of the run's seed"}
    )
    dropout: float = field(
        default=0.0, metadata={"help": "probability that a sampled client drops out of a round"}
    )
    server_lr: float = field(
        default=1.0, metadata={"help": "factor of the mean difference in the server's update"}
    )

    codec: str = codec_field("the clients' differences")

    def __post_init__(self) -> None:
        set_codec(self)
        if not 0 < self.fraction <= 1:
            raise ConfigurationError("fraction", "must be above 0 and at most 1", self.fraction, "1 is all")
        _check_whole("epochs", self.epochs, at_least=1)
        if self.batch is not None:
            _check_whole("batch", self.batch, at_least=0)
        if not 0 <= self.dropout < 1:
            bound = "must be at least 0 and below 1"
            raise ConfigurationError("dropout", bound, self.dropout, "1 would leave no client")
        if not 0 < self.server_lr < math.inf:
            bound = "must be finite and above 0"
            raise ConfigurationError("server_lr", bound, self.server_lr, "1 is plain averaging")
        self.make_partition()

    @property
    def replicates(self) -> Sequence[str]:
        return () if keeps_residuals(self.codec) else ("worker", "server")

    def make_partition(self) -> Partition:
        return Partition(
            kind=self.partition,
            alpha=self.alpha,
            shards_per_client=self.shards_per_client,
            allow_empty=self.allow_empty,
            seed=self.partition_seed,
        )

    def divides_batch(self, workers: int) -> bool:
        return False  # clients have batches of their own

    def roles(self, workers: int) -> Sequence[str]:
        return (*("worker",) * workers, "server")

    @staticmethod
    def unsuited(scope: Scope) -> str:
        return "its clients keep their own data"

    def samples_by_round(
        self, samples: Samples, clients: int, rng_of: Callable[[int], np.random.Generator]
    ) -> Iterator[int]:
        partition, server_rng = self.make_partition(), rng_of(clients)
        parts = partition.parts(samples.targets, clients)
        rngs = [rng_of(client) for client in range(clients)]
        while True:
            sampled = sample_clients(server_rng, range(clients), self.fraction)
            yield self.epochs * sum(self._used(parts[client], rngs[client]) for client in sampled)

    def _used(self, part: np.ndarray, rng: np.random.Generator) -> int:
        """Return the samples that a client uses per epoch. Makes the same random draws as `Client` in a round."""
        if drops_out(rng, part, self.dropout):
            return 0
        if self.dropout:
            for _ in range(self.epochs):
                rng.permutation(part)
        return len(part)

    async def worker(self, ctx: Context) -> None:
        work = LocalWork(epochs=self.epochs, batch=self.batch, dropout=self.dropout, adjust=self.adjust)
        await Client(ctx, work, self.make_partition(), coded(ctx, self.codec)).run()

    async def server(self, ctx: Context) -> None:
        await FederatedServer(ctx, self.fraction, self.server_update(ctx.model), coded(ctx, self.codec)).run()

    # Hooks for variants

    def adjust(self, gradient: Tensor, parameters: Tensor, model: Tensor) -> None:
        """Change a client's gradient before it is applied to its parameters. `model` is the round's model."""

    def server_update(self, model: Model) -> Update:
        """Return the function that updates the server's parameters from the clients' mean difference."""

        def update(difference: Tensor) -> None:
            model.parameters.add_(difference, alpha=self.server_lr)

        return update


def _check_whole(argument: str, value: object, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigurationError(argument, f"must be a whole number of at least {at_least}", value)
