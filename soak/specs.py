"""Random valid strategy specs, such as "k-sync:k=2,servers=2"."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from paceline.collectives import ALGORITHMS
from paceline.schedules.pipeline import ORDERS
from paceline.strategies import STRATEGIES

WORDS = tuple(sorted(STRATEGIES))
ONE_HOST = ("shared", "native")
"""Algorithms that only ranks of one host can use."""

FEWEST_LAYERS, NARROWEST = 3, 3
"""Number of layers and of columns of the smallest model."""

Parameters = dict[str, object]
Maker = Callable[[random.Random, int], Parameters]


def make_spec(rng: random.Random, word: str, workers: int, *, one_host: bool) -> str:
    """Return a strategy with random parameters. A strategy without an entry here gets its defaults."""
    values = _MAKERS[word](rng, workers) if word in _MAKERS else {}
    if not one_host and values.get("algorithm") in ONE_HOST:
        values["algorithm"] = "ring"
    text = ",".join(f"{name}={value}" for name, value in values.items())
    return f"{word}:{text}" if text else word


def _chosen(rng: random.Random, options: Mapping[str, tuple[object, ...]]) -> Parameters:
    """Choose a value for each parameter, or none for its default."""
    return {name: rng.choice(values) for name, values in options.items() if rng.random() < 0.6}


def _servers(rng: random.Random, workers: int) -> Parameters:
    placement = rng.choice(["servers", "servers", "servers", "worker", "all"])
    if placement != "servers":
        return {"placement": placement}
    return {"servers": rng.choice([1, 1, 2, 3])}


def _waits_for_k(rng: random.Random, workers: int) -> Parameters:
    return {"k": rng.randint(1, workers), **_stale(rng, workers)}


def _counts_k_batches(rng: random.Random, workers: int) -> Parameters:
    return {"k": rng.randint(1, 2 * workers), **_stale(rng, workers)}


def _stale(rng: random.Random, workers: int) -> Parameters:
    return {**_servers(rng, workers), **({"staleness_aware": "yes"} if rng.random() < 0.2 else {})}


def _ssp(rng: random.Random, workers: int) -> Parameters:
    return {"staleness": rng.randint(0, 4), **_servers(rng, workers)}


def _all_reduce(rng: random.Random, workers: int) -> Parameters:
    return _chosen(rng, {"algorithm": ALGORITHMS, "bucket_mb": (0.0001, 0.05, 25)})


def _local_sgd(rng: random.Random, workers: int) -> Parameters:
    averages = ("parameters", "parameters+momentum")
    options = {"averages": averages, "post_local": (0, 2, 99), "algorithm": _summing()}
    return {"period": rng.randint(1, 4), **_chosen(rng, options)}


def _diloco(rng: random.Random, workers: int) -> Parameters:
    options = {"outer_lr": (0.5, 1), "outer_momentum": (0, 0.5), "algorithm": _summing()}
    return {"period": rng.randint(1, 5), **_chosen(rng, options)}


def _summing() -> tuple[str, ...]:
    """Return the algorithms for local steps. Native sums have other bits, and local steps are checked by bits."""
    return tuple(name for name in ALGORITHMS if name != "native")


def _decentralized(rng: random.Random, workers: int) -> Parameters:
    mode = rng.choice(["sync", "async"])
    topologies = ["ring", "complete", "star", "path"]
    if workers in (4, 6):
        topologies += ["random-regular:degree=3", "torus", "grid"]
    if workers in (2, 4):
        topologies.append("hypercube")
    if mode == "sync":
        topologies += ["exponential", "one-peer-exponential"]
    orders = ("combine-then-adapt", "adapt-then-combine") if mode == "sync" else ("combine-then-adapt",)
    options = {"order": orders, "overlap": ("yes", "no"), "consensus_every": (0, 1, 3)}
    return {"topology": rng.choice(topologies), "mode": mode, **_chosen(rng, options)}


def _federated(rng: random.Random, workers: int) -> Parameters:
    options = {"fraction": (0.5, 1.0), "epochs": (1, 2), "batch": (0, 3, 8), "dropout": (0.0, 0.2)}
    return _chosen(rng, options)


def _fedprox(rng: random.Random, workers: int) -> Parameters:
    return {**_federated(rng, workers), "mu": rng.choice([0, 0.01, 0.5])}


def _fedavgm(rng: random.Random, workers: int) -> Parameters:
    return {**_federated(rng, workers), "momentum": rng.choice([0, 0.5])}


def _fedadam(rng: random.Random, workers: int) -> Parameters:
    return {**_federated(rng, workers), "server_lr": 0.001, "beta1": rng.choice([0, 0.9])}


def _pipeline(rng: random.Random, workers: int) -> Parameters:
    order = rng.choice(sorted(ORDERS))
    chunks: Parameters = {"chunks": 2} if order == "interleaved" else {}
    return {"order": order, **chunks, **_chosen(rng, {"microbatches": (1, 2, 3, 5, 8)})}


def _zero(rng: random.Random, workers: int) -> Parameters:
    stage = rng.choice([1, 2, 3])
    options = {"segments": (1, 2, 3), "microbatches": (1, 2, 3)} if stage > 1 else {}
    return {"stage": stage, **_chosen(rng, options)}


def _tensor(rng: random.Random, workers: int) -> Parameters:
    return {"size": rng.choice(_divisors(workers, NARROWEST))}


def _hybrid(rng: random.Random, workers: int) -> Parameters:
    pipeline = rng.choice(_divisors(workers, FEWEST_LAYERS))
    tensor = rng.choice(_divisors(workers // pipeline, NARROWEST))
    orders = tuple(name for name in ORDERS if name != "interleaved")
    options = {"order": orders, "microbatches": (1, 2, 3, 5), "algorithm": _summing()}
    return {"pipeline": pipeline, "tensor": tensor, "zero": rng.randint(0, 3), **_chosen(rng, options)}


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, most + 1) if number % n == 0]


_MAKERS: Mapping[str, Maker] = {
    "all-reduce": _all_reduce,
    "sync": _servers,
    "central-storage": _servers,
    "async": _stale,
    "k-sync": _waits_for_k,
    "k-async": _waits_for_k,
    "k-batch-sync": _counts_k_batches,
    "k-batch-async": _counts_k_batches,
    "ssp": _ssp,
    "local-sgd": _local_sgd,
    "pipeline": _pipeline,
    "zero": _zero,
    "tensor": _tensor,
    "hybrid": _hybrid,
    "diloco": _diloco,
    "decentralized": _decentralized,
    "fedavg": _federated,
    "fedprox": _fedprox,
    "fedavgm": _fedavgm,
    "fedadam": _fedadam,
}
