"""Decentralized SGD: each peer has parameters of its own, averages them with its neighbours' and takes its own steps.

`mode="sync"` is D-PSGD, four steps: the gradient at the peer's own parameters; the neighbours' parameters; their
weighted average with its own; the gradient applied to that. A step is one update of every peer.
`order="adapt-then-combine"` applies the gradient first and averages what comes of it: on the complete graph that is
`all-reduce`, without clipping and with optimizers whose update is linear in the gradient (SGD, momentum).

`mode="async"` is AD-PSGD: a peer averages with one random neighbour at a time, and nobody waits for anybody else (see
gossip/pairwise.py). A step is one update of any peer, by the mean gradient of its slice: as many steps as there are
peers move the peers' mean about as far as one step of `sync`. The run ends after exactly as many as it was asked for.
The learning-rate schedule goes by the updates of all, as the peer last saw them.

- A peer's gradient is that of its slice of the global batch, scaled so that the mean over peers is the global batch's.
- Each peer has an optimizer of its own. BatchNorm's statistics are each peer's own, in the run's model the first one's.
- `run.model` is the peers' mean. `consensus` in the history is the root of the mean squared distance from it.
- A peer that dies is left out: its neighbours give its weight to themselves. On an undirected graph that leaves the
  others' weights doubly stochastic, so their mean is kept from then on; what the lost one held leaves the mean with it.
  Its slices of the data are not trained on any more. The first peer keeps the record, and its death ends the run.

When: High latency or many peers: a step costs a peer the same whatever their number.
Cost, n bytes, degree d: d n sent by each peer and step, d n b + a seconds (`sync`), whatever the number of peers; with
`overlap` only what exceeds the gradient's. `async`: 2 (a + n b) an exchange, about 2 n bytes sent a step.
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
from paceline.strategies.gossip.pairwise import Pairwise
from paceline.strategies.gossip.synchronous import ORDERS, Synchronous

__all__ = ["Decentralized"]

MODES = ("sync", "async")
_DEFAULT_WEIGHTS = "metropolis"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decentralized(Strategy):
    """Peers average parameters with their neighbours alone: D-PSGD and AD-PSGD."""

    expendable: ClassVar[tuple[str, ...]] = ("worker",)

    topology: Any = field(
        default="ring",
        metadata={
            "help": f"who the neighbours are: {', '.join(FAMILIES)}; with parameters as in random-regular:degree=4; "
            "a file of edges or of weights; in Python also a networkx graph or a matrix"
        },
    )
    weights: Any = field(
        default=_DEFAULT_WEIGHTS, metadata={"help": "how neighbours count: metropolis, uniform, or a matrix"}
    )
    mode: str = field(
        default="sync", metadata={"help": "sync: all in step; async: pairwise, at one's own pace"}
    )
    order: str = field(
        default=ORDERS[0], metadata={"help": f"of averaging and updating in sync mode: {' or '.join(ORDERS)}"}
    )
    overlap: bool = field(
        default=True,
        metadata={
            "help": "exchange parameters while the gradient is computed; adapt-then-combine cannot: "
            "what it exchanges has to be computed first"
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
        default=False, metadata={"help": "take a topology on which the peers never agree"}
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
        """Graphs and matrices that are no words become a topology at once: it compares and travels as one value."""
        if _is_words(self.topology) and _is_words(self.weights):
            return
        peers = _count_rows(self.weights) if _is_words(self.topology) else None
        object.__setattr__(self, "topology", self.build(peers))
        object.__setattr__(self, "weights", _DEFAULT_WEIGHTS)

    def build(self, peers: int | None) -> Topology:
        """The topology of so many peers."""
        return build_topology(
            self.topology, peers, weights=self.weights, allow_disconnected=self.allow_disconnected
        )

    def roles(self, workers: int) -> Sequence[str]:
        topology = self.build(workers)
        if self.mode == "async":
            _check_goes_both_ways(topology)
        return ("worker",) * workers

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


def _is_words(given: object) -> bool:
    """A name or a file: the same in every process, and built anew in each."""
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
            "must be undirected and the same all the time in mode async, where two peers average with each other "
            "and there is no common step",
            f"{topology.name}, which {what}",
            "use mode=sync, or ring, torus, hypercube, random-regular, …",
        )
