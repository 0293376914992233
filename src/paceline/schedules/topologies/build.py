"""Builds and checks a topology from any user-supplied form."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import ConfigurationError, UnknownNameError
from paceline.schedules.topologies.checks import check_connected, check_settles
from paceline.schedules.topologies.families import FAMILIES
from paceline.schedules.topologies.given import graph_of_edge_file, graph_of_networkx, is_networkx
from paceline.schedules.topologies.graph import Graph
from paceline.schedules.topologies.matrix import MATRIX_FILES, mixing_of_matrix, read_matrix
from paceline.schedules.topologies.mixing import Mixing
from paceline.schedules.topologies.topology import Topology
from paceline.schedules.topologies.weights import WEIGHTS, goes_both_ways

_DEFAULT_WEIGHTS = "metropolis"


def build_topology(
    spec: Any,
    peers: int | None = None,
    seed: int = 0,
    *,
    weights: Any = _DEFAULT_WEIGHTS,
    allow_disconnected: bool = False,
) -> Topology:
    """Build a topology of `peers` peers, with doubly stochastic weights that lead to consensus.

    `spec` is a name with parameters ("random-regular:degree=4"), a file of edges, a networkx graph, a weight matrix
    (array, .npy or .csv), or a topology, which is returned unchanged. A name needs `peers`. The other forms define the
    number of peers, and `peers` must agree if given. `weights` is "metropolis", "uniform" or a matrix (same forms),
    which may have weights along the graph's edges only. `seed` is for random graphs without a seed parameter.

    `allow_disconnected` accepts topologies that cannot reach consensus: disconnected graphs, and weights that
    oscillate. Equal text arguments return the same cached object, so that a call on each rank is cheap.
    """
    _check_peers(peers)
    if isinstance(spec, Topology):
        _check_count(spec.peers, peers)
        _check_weights_left_out(weights, spec.name)
        return spec
    spec, weights = (str(given) if isinstance(given, Path) else given for given in (spec, weights))
    if isinstance(spec, str) and isinstance(weights, str):
        return _remembered(spec, peers, seed, weights, allow_disconnected, _stamp(spec), _stamp(weights))
    return _build(spec, peers, seed, weights, allow_disconnected)


@lru_cache(maxsize=16)
def _remembered(
    spec: str, peers: int | None, seed: int, weights: str, allow_disconnected: bool, *stamps: object
) -> Topology:
    return _build(spec, peers, seed, weights, allow_disconnected)


def _stamp(words: str) -> object:
    """Return a value that changes when the file changes; None if it is not a file."""
    if words in WEIGHTS or words.partition(":")[0] in FAMILIES:
        return None
    try:
        found = os.stat(words)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _build(spec: Any, peers: int | None, seed: int, weights: Any, allow_disconnected: bool) -> Topology:
    name = spec if isinstance(spec, str) else "graph" if is_networkx(spec) else "matrix"
    positions = None
    if _is_matrix(spec):
        _check_weights_left_out(weights, name)
        rows: tuple[Mixing, ...] = (_matrix(spec),)
        _check_count(rows[0].peers, peers)
    else:
        graph = _graph(spec, peers, seed)
        _check_count(graph.peers, peers)
        rows, positions = _weighted(graph, weights), graph.positions
    # Only edges with a weight, because a matrix may leave out edges of its graph.
    weighted = Graph(peers=rows[0].peers, steps=tuple(mixing.edges for mixing in rows))
    if not allow_disconnected:
        check_connected(weighted, _how_to_connect(name))
        if len(rows) == 1:
            check_settles(rows[0])
    return Topology(
        name=name,
        peers=weighted.peers,
        directed=not all(goes_both_ways(edges, weighted.peers) for edges in weighted.steps),
        rows=rows,
        columns=tuple(mixing.transposed() for mixing in rows),
        positions=positions,
    )


def _is_matrix(spec: Any) -> bool:
    return Path(spec).suffix in MATRIX_FILES if isinstance(spec, str) else not is_networkx(spec)


def _matrix(given: Any) -> Mixing:
    return mixing_of_matrix(read_matrix(Path(given)) if isinstance(given, str) else given)


def _graph(spec: Any, peers: int | None, seed: int) -> Graph:
    if not isinstance(spec, str):
        return graph_of_networkx(spec)
    family = FAMILIES.get(spec.partition(":")[0])
    if family is None and (Path(spec).suffix or os.sep in spec or Path(spec).exists()):
        return graph_of_edge_file(Path(spec), peers)
    name, parameters = parse_topology(spec)
    if peers is None:
        raise ConfigurationError(
            "peers", f"must be given with {name}", peers, "give their number with --workers"
        )
    if "seed" in FAMILIES[name].parameters:
        parameters = {"seed": seed} | parameters
    return FAMILIES[name].build(peers, **parameters)


def _weighted(graph: Graph, weights: Any) -> tuple[Mixing, ...]:
    if isinstance(weights, str) and weights in WEIGHTS:
        return tuple(WEIGHTS[weights](edges, graph.peers) for edges in graph.steps)
    if isinstance(weights, str) and Path(weights).suffix not in MATRIX_FILES:
        raise UnknownNameError("weights", weights, [*WEIGHTS, "a .npy or .csv file"])
    if len(graph.steps) > 1:
        remedy = f"omit it, or choose one of {', '.join(WEIGHTS)}"
        raise ConfigurationError("weights", "cannot be a matrix if the edges change", "a matrix", remedy)
    mixing = _matrix(weights)
    _check_count(mixing.peers, graph.peers, "weights")
    _check_edges(mixing, graph)
    return (mixing,)


def _how_to_connect(name: str) -> str:
    remedies = {
        "erdos-renyi": "raise p or change the seed",
        "random-regular": "raise degree or change the seed",
    }
    return remedies.get(name.partition(":")[0], "add edges between them")


def _check_peers(peers: Any) -> None:
    if peers is not None and (isinstance(peers, bool) or not isinstance(peers, int) or peers < 1):
        raise ConfigurationError("peers", "must be a whole number of at least 1", peers)


def _check_count(has: int, peers: int | None, argument: str = "topology") -> None:
    if peers is not None and has != peers:
        bound = f"must have one node for each of {peers} peers"
        raise ConfigurationError(argument, bound, has, f"use {has} peers, or a graph of {peers} nodes")


def _check_weights_left_out(weights: Any, name: str) -> None:
    if not isinstance(weights, str) or weights != _DEFAULT_WEIGHTS:
        bound = f"must be omitted: {name} has its own weights"
        raise ConfigurationError("weights", bound, weights, "give a graph to use other weights")


def _check_edges(mixing: Mixing, graph: Graph) -> None:
    beside = np.setdiff1d(mixing.edges @ [graph.peers, 1], graph.steps[0] @ [graph.peers, 1])
    if len(beside):
        row, column = divmod(int(beside[0]), graph.peers)
        bound = f"must be 0 in row {row}, column {column}: the topology has no edge there"
        remedy = "give the matrix itself as the topology to use its edges"
        raise ConfigurationError("weights", bound, mixing.dense()[row, column], remedy)


def parse_topology(words: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a family and its parameters, of text such as "erdos-renyi:p=0.2,seed=3".

    Parameters may also be separated by colons, for places where a comma has another meaning.
    """
    name, *items = re.split("[:,]", words)
    if name not in FAMILIES:
        raise UnknownNameError("topology", name, [*FAMILIES, "a file of edges", "a .npy or .csv file"])
    known = FAMILIES[name].parameters
    values: dict[str, Any] = {}
    for item in filter(None, items):
        key, equals, text = (part.strip() for part in item.partition("="))
        if key not in known:
            raise UnknownNameError(f"parameter of {name}", key, known)
        if not equals or key in values:
            how = "once" if equals else "a value"
            raise ConfigurationError(f"{name}:{key}", f"must be given {how}", words, f"write {name}:{key}=…")
        values[key] = _parse_number(f"{name}:{key}", known[key], text)
    return name, values


def _parse_number(argument: str, kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        bound = f"must be a {'whole ' if kind is int else ''}number"
        raise ConfigurationError(argument, bound, text) from None
