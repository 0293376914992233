"""Decentralized SGD: each peer has its own parameters, averages them with its neighbours' and steps alone.

`mode="sync"` is D-PSGD. In each step a peer computes the gradient at its own parameters, receives its neighbours'
parameters, takes the weighted average with its own, and applies the gradient to the average. A step is one update of
every peer. `order="adapt-then-combine"` applies the gradient first and averages the result. On the complete graph this
equals `all-reduce`, without clipping and for optimizers with an update that is linear in the gradient (SGD, momentum).

`mode="async"` is AD-PSGD: a peer averages with one random neighbour at a time, and waits for no other peer (see
gossip/pairwise.py). A step is one update of any peer, with the mean gradient of its slice. With p peers, p
steps move the mean of the peers about as far as one step of `sync`. The run ends after exactly the requested number
of steps. The learning-rate schedule uses the number of updates by all peers, as known at the peer's last update.

- The gradient of a peer's slice is scaled so that the mean over peers is the gradient of the global batch.
- Each peer has its own optimizer and its own BatchNorm statistics. The run's model has the statistics of the first
peer.
- `run.model` is the mean of the peers. `consensus` in the history is the root mean square distance from this mean.
- If a peer dies, its neighbours add its weight to their own. On an undirected graph the remaining weights stay doubly
  stochastic, so averaging preserves the mean of the remaining peers. The parameters of the lost peer drop out of the
  mean, and its slices of the data are no longer used. The first peer writes the record, so its death ends the run.

When: High latency or many peers: the cost of a step does not depend on the number of peers.
Cost, n bytes, degree d: d n sent by each peer and step, d n b + a seconds (`sync`), for any number of peers; with
`overlap` only the part that exceeds the time of the gradient. `async`: 2 (a + n b) per exchange, about 2 n bytes sent
per step.
Sources: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NIPS 2017 (D-PSGD); Lian,
Zhang, Zhang, Liu, "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018; the two orders: Sayed,
"Adaptation, Learning, and Optimization over Networks", 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from paceline.context import Context, Strategy
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.schedules.topologies import FAMILIES, Topology, build_topology
from paceline.strategies.shared.gossip.pairwise import Pairwise
from paceline.strategies.shared.gossip.synchronous import ORDERS, Synchronous
from paceline.strategies.shared.search_space import Scope, Tried, tried

MODES = ("sync", "async")
_DEFAULT_WEIGHTS = "metropolis"


_MOST_COMPLETE = 64


def _topologies(scope: Scope, strategy: Any) -> list[str]:
    """Return the topologies to try. In a complete graph of many workers, each step has a message for every pair."""
    found = ["ring", "exponential", "one-peer-exponential"]
    return [*found, "complete"] if scope.workers <= _MOST_COMPLETE else found


@dataclass(frozen=True, kw_only=True, slots=True)
class Decentralized(Strategy):
    """Peers average parameters with their neighbours only: D-PSGD and AD-PSGD."""

    expendable: ClassVar[tuple[str, ...]] = ("worker",)
    why_no_codec: ClassVar[str] = (
        "peers send parameters, and rounding these changes their mean, which gossip must preserve"
    )

    topology: Any = field(
        default="ring",
        metadata={
            "help": f"graph of the peers: {', '.join(FAMILIES)}; parameters follow as in random-regular:degree=4; "
            "or a file of edges or weights; in Python also a networkx graph or a matrix",
            "tries": Tried(_topologies, _topologies),
        },
    )
    weights: Any = field(
        default=_DEFAULT_WEIGHTS,
        metadata={"help": "weights of the average: metropolis, uniform, or a matrix"},
    )
    mode: str = field(
        default="sync",
        metadata={
            "help": "sync: all peers average in every step; async: pairs of peers average at any time",
            "tries": tried(*MODES, leads=True),
        },
    )
    order: str = field(
        default=ORDERS[0], metadata={"help": f"averaging and updating in sync mode: {' or '.join(ORDERS)}"}
    )
    overlap: bool = field(
        default=True,
        metadata={
            "help": "exchange parameters while the gradient is computed; not possible with adapt-then-combine, "
            "which exchanges the updated parameters"
        },
    )
    consensus_every: int = field(
        default=0,
        metadata={"help": "steps between two measurements of consensus; 0: whenever the run evaluates"},
    )
    evaluate_peers: bool = field(
        default=False, metadata={"help": "evaluate each peer's own model at the end, for run.peer_metrics"}
    )
    allow_disconnected: bool = field(
        default=False, metadata={"help": "accept a topology on which the peers never reach consensus"}
    )

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UnknownNameError("mode", str(self.mode), MODES)
        if self.order not in ORDERS:
            raise UnknownNameError("order", str(self.order), ORDERS)
        every = self.consensus_every
        if not isinstance(every, int) or isinstance(every, bool) or every < 0:
            bound = "must be a whole number of at least 0"
            raise ConfigurationError("consensus_every", bound, every, "0 measures whenever the run evaluates")
        self._build_given()

    def _build_given(self) -> None:
        """Build the topology now if a graph or a matrix was given. The topology can be compared and pickled."""
        if _is_text(self.topology) and _is_text(self.weights):
            return
        peers = _count_rows(self.weights) if _is_text(self.topology) else None
        object.__setattr__(self, "topology", self.build(peers))
        object.__setattr__(self, "weights", _DEFAULT_WEIGHTS)

    def build(self, peers: int | None) -> Topology:
        """Build the topology of `peers` peers."""
        return build_topology(
            self.topology, peers, weights=self.weights, allow_disconnected=self.allow_disconnected
        )

    def roles(self, workers: int) -> Sequence[str]:
        topology = self.build(workers)
        if self.mode == "async":
            _check_goes_both_ways(topology)
        return ("worker",) * workers

    def batches_per_update(self, workers: int) -> float:
        return 1 / workers if self.mode == "async" else 1.0

    async def worker(self, ctx: Context) -> None:
        topology = self.build(len(ctx.workers))
        if self.mode == "async":
            peer: Pairwise | Synchronous = Pairwise(
                ctx,
                topology,
                overlap=self.overlap,
                consensus_every=self.consensus_every,
                evaluate_peers=self.evaluate_peers,
            )
        else:
            peer = Synchronous(
                ctx,
                topology,
                order=self.order,
                overlap=self.overlap,
                consensus_every=self.consensus_every,
                evaluate_peers=self.evaluate_peers,
            )
        await peer.run()


def _is_text(given: object) -> bool:
    """Return whether this is a name or a file. Each process builds the topology from it again."""
    return isinstance(given, str | Path)


def _count_rows(weights: Any) -> int:
    shape = np.shape(weights)
    if len(shape) != 2:
        remedy = "metropolis is the default"
        raise ConfigurationError("weights", "must be a name, a file or a matrix", weights, remedy)
    return int(shape[0])


def _check_goes_both_ways(topology: Topology) -> None:
    if topology.directed or topology.period > 1:
        what = "changes from step to step" if topology.period > 1 else "is directed"
        raise ConfigurationError(
            "topology",
            "must be undirected and constant in mode async: two peers average with each other, and peers have "
            "no common step number",
            f"{topology.name}, which {what}",
            "use mode=sync, or ring, torus, hypercube, random-regular, …",
        )
