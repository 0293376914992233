"""The parameter server: workers push gradients and pull parameters; the server decides when an update happens.

The variants in the literature differ in a few decisions (`Policy`). Each variant has its own file beside this one.
With several servers each owns a shard of the parameters. The first server decides which gradients make up each
update and sends that decision to the others, so that all shards are updated from the same gradients. Servers are
separate nodes, or the first worker is also the server, or every worker is also the server of one shard.

A worker's mini-batch is its slice of a global batch. An update with K gradients uses their mean, weighted by samples.
So the learning rate needs no scaling by K, and `sync` equals `single`.

Cost, n bytes, p workers, S servers: 2 p n / S bytes pass a server's port for every p gradients. If workers are also
servers, this is multiplied by (p - 1) / p: a rank's messages to itself pass no port.
Sources: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014; the variants: Dutta,
Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from paceline.collectives.coded import coded
from paceline.context import Context, Net, StateAt, Strategy
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.strategies.shared.codec import codec_field, gradient_codec, keeps_residuals, set_codec
from paceline.strategies.shared.push_pull.coordinator import Coordinator
from paceline.strategies.shared.push_pull.follower import Follower
from paceline.strategies.shared.push_pull.policy import Policy
from paceline.strategies.shared.push_pull.worker import Worker
from paceline.strategies.shared.search_space import Tried, server_counts, tried

PLACEMENTS = ("servers", "worker", "all")


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterServer(Strategy):
    """Workers push gradients to servers and pull parameters from them."""

    expendable: ClassVar[tuple[str, ...]] = ("worker",)
    # At a checkpoint the first server has fetched the others' shards, and every worker has the newest parameters.
    _replicates: ClassVar[tuple[str, ...]] = ("worker", "server", "serving_worker")

    servers: int = field(
        default=1,
        metadata={"help": "server nodes, each with a shard of the parameters", "tries": Tried(server_counts)},
    )
    placement: str = field(
        default="servers",
        metadata={
            "help": "where servers run: servers (separate nodes), worker (the first worker), all (each worker)",
            "tries": tried({"placement": "all", "servers": 1}, {"placement": "worker", "servers": 1}),
        },
    )
    staleness_aware: bool = field(
        default=False, metadata={"help": "divide a gradient by its staleness if the staleness is above 1"}
    )
    codec: str = codec_field("pushed gradients")
    pull_codec: str = codec_field("pulled parameters")

    def __post_init__(self) -> None:
        set_codec(self)
        set_codec(self, name="pull_codec")
        if keeps_residuals(self.pull_codec):
            bound = "must be a codec of messages (bf16, fp16, int8 or int4): parameters leave no residual to add later"
            raise ConfigurationError("pull_codec", bound, self.pull_codec, "use it for gradients: codec=")
        if not isinstance(self.servers, int) or not 1 <= self.servers <= 64:
            raise ConfigurationError("servers", "must be a whole number from 1 to 64", self.servers)
        if self.placement not in PLACEMENTS:
            raise UnknownNameError("placement", self.placement, PLACEMENTS)
        if self.placement != "servers" and self.servers != 1:
            remedy = f"omit servers: with placement={self.placement} the workers are the servers"
            raise ConfigurationError("servers", "must be 1 if workers are servers", self.servers, remedy)

    @property
    def replicates(self) -> Sequence[str]:
        return () if keeps_residuals(self.codec) else self._replicates

    @property
    def state_at(self) -> StateAt:
        # Several servers may be some updates apart, and each has a shard that no other rank has.
        is_alone = self.servers == 1 and self.placement != "all"
        return "server" if is_alone and not keeps_residuals(self.codec) else "shards"

    def policy(self, workers: int) -> Policy:
        """Return the decisions of this variant for a number of workers."""
        raise NotImplementedError

    def roles(self, workers: int) -> Sequence[str]:
        policy = self.policy(workers)
        policy.check(workers)
        if policy.cancels and keeps_residuals(self.codec):
            bound = (
                "must be a codec of messages where servers discard gradients: what they carry would be lost"
            )
            raise ConfigurationError(
                "codec", bound, self.codec, "use bf16, fp16, int8 or int4, or another strategy"
            )
        if self.placement == "servers":
            return (*("worker",) * workers, *("server",) * self.servers)
        serving = workers if self.placement == "all" else 1
        return (*("serving_worker",) * serving, *("worker",) * (workers - serving))

    def batches_per_update(self, workers: int) -> float:
        return self.policy(workers).k / workers

    def syncs_batch_norm(self, workers: int) -> bool:
        return self.policy(workers).takes_all(workers)

    async def worker(self, ctx: Context) -> None:
        pushes, pulls = self._nets(ctx)
        await Worker(ctx, self._servers(ctx), self.policy(len(ctx.workers)), pushes, pulls).run()

    async def server(self, ctx: Context) -> None:
        servers, policy = self._servers(ctx), self.policy(len(ctx.workers))
        part = Coordinator if ctx.rank == servers[0] else Follower
        pushes, pulls = self._nets(ctx)
        await part(ctx, servers, policy, pushes, pulls, staleness_aware=self.staleness_aware).run()

    def _nets(self, ctx: Context) -> tuple[Net, Net]:
        """Return the net that carries gradients, and the one that carries parameters."""
        return coded(ctx, gradient_codec(ctx, self.codec)), coded(ctx, self.pull_codec)

    async def serving_worker(self, ctx: Context) -> None:
        """Run a server and a worker.

        The worker has its own replica, because the server's parameters change during a computation.
        """
        working = ctx.start(self.worker(ctx.model.twin()))
        await self.server(ctx)
        await working

    def _servers(self, ctx: Context) -> Sequence[int]:
        """Return the ranks that are servers. The first one is the coordinator."""
        if self.placement == "servers":
            return ctx.servers
        return ctx.workers if self.placement == "all" else ctx.workers[:1]
