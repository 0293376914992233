"""Graphs supplied by the user: a networkx graph, or a text file of edges.

A file has one edge per line: the numbers of two peers, from 0, separated by blanks. Text after the numbers or after
a # is ignored. Edges in files are undirected. In a directed networkx graph, the edge (u, v) sends from u to v. An
edge from a peer to itself only declares the peer.
"""

from __future__ import annotations

from numbers import Integral
from pathlib import Path
from typing import Any

from paceline.errors import ConfigurationError
from paceline.schedules.topologies.graph import Graph, directed_edges, undirected_edges


def is_networkx(value: object) -> bool:
    """Return whether this is a networkx graph. It is recognized by its methods, without importing networkx."""
    return all(hasattr(value, name) for name in ("nodes", "edges", "is_directed", "number_of_nodes"))


def graph_of_networkx(graph: Any) -> Graph:
    """Convert a networkx graph. Integer nodes are peer numbers; other nodes are numbered in the graph's order."""
    peers = graph.number_of_nodes()
    numbers = _numbers(list(graph.nodes))
    pairs = [(numbers[one], numbers[other]) for one, other in graph.edges()]
    senders, receivers = [one for one, _ in pairs], [other for _, other in pairs]
    joined = directed_edges if graph.is_directed() else undirected_edges
    return Graph(peers=peers, steps=(joined(receivers, senders, peers),))


def graph_of_edge_file(path: Path, peers: int | None) -> Graph:
    """Read the graph of a file. Raise an error for a peer out of range. `peers=None` accepts any number."""
    ends: list[int] = []
    other_ends: list[int] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if words := line.partition("#")[0].split():
            one, other = _edge(f"{path}, line {number},", words, peers)
            ends.append(one)
            other_ends.append(other)
    if not ends:
        raise ConfigurationError(
            f"{path}", "must have one edge per line", "none", "write two numbers per line"
        )
    named = max(ends + other_ends) + 1
    return Graph(peers=named, steps=(undirected_edges(ends, other_ends, named),))


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        bound = "must be the name of a topology, or a readable text file"
        raise ConfigurationError("topology", bound, str(path), str(error)) from None


def _numbers(nodes: list[Any]) -> dict[Any, int]:
    if all(isinstance(node, Integral) for node in nodes):
        wrong = next((node for node in nodes if not 0 <= node < len(nodes)), None)
        if wrong is not None:
            remedy = "use networkx.convert_node_labels_to_integers"
            raise ConfigurationError(
                "topology", f"must number its nodes 0 to {len(nodes) - 1}", wrong, remedy
            )
        return {node: int(node) for node in nodes}
    return {node: number for number, node in enumerate(nodes)}


def _edge(where: str, words: list[str], peers: int | None) -> tuple[int, int]:
    try:
        one, other = int(words[0]), int(words[1])
    except (ValueError, IndexError):
        bound = "must begin with two whole numbers"
        raise ConfigurationError(where, bound, " ".join(words), "write an edge as 0 1") from None
    for peer in (one, other):
        if peer < 0 or (peers is not None and peer >= peers):
            range_ = "at least 0" if peers is None else f"0 to {peers - 1}"
            remedy = "" if peers is None else f"there are {peers} peers, numbered from 0"
            raise ConfigurationError(where, f"must name peers {range_}", peer, remedy)
    return one, other
