"""Connections of a rank to the others: shared memory, TCP, or a combination made by the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.clusters.process.status_board import StatusBoard
from paceline.costs.link import Link
from paceline.costs.transfers import SharedLinks
from paceline.links.memory.bells import Bells, SocketBells
from paceline.links.memory.lending import Lending
from paceline.links.memory.ring_ways import RingWays
from paceline.links.memory.shared import SharedMemory
from paceline.links.port import Ways
from paceline.links.tcp import TcpEndpoint, TcpWays


@dataclass(frozen=True, kw_only=True, slots=True)
class TcpNetwork:
    """Settings shared by all ranks of a run that communicate over TCP."""

    run_id: bytes
    token: bytes
    encrypt: bool

    @property
    def words(self) -> str:
        """Description for users."""
        return "encrypted TCP" if self.encrypt else "TCP"

    def open(self, rank: int) -> TcpEndpoint:
        """Open the endpoint of a rank on this machine."""
        return TcpEndpoint(rank, run_id=self.run_id, encrypt=self.encrypt, token=self.token)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """Connections of one rank."""

    ways: Ways
    hosts: Sequence[int]
    """Host of each rank. Ranks of one host share memory."""
    words: str
    """Description of the connection, for users."""
    lending: Lending | None = None
    """Memory of this rank that other ranks read messages from, without a copy. None if it shares no memory."""
    emulated: Sequence[Link] | None = None
    """Emulated link to each rank, which sets the transfer times. None for real links."""
    shared: SharedLinks | None = None
    """Cards and switch between emulated hosts. None if they are never a bottleneck."""
    is_strict: bool = False
    """Whether other paths, such as shared memory, are forbidden: they would avoid the emulated delay or the
    encryption."""
    endpoint: TcpEndpoint | None = None
    """Sockets of this rank, over TCP. Messages may then arrive after their sender has ended."""


def over_memory(rank: int, ranks: int, rings: SharedMemory, bells: Bells, lending: Lending) -> Wiring:
    """Connect all ranks on this host by shared memory."""
    ways = RingWays(rank, ranks, rings, bells, lending)
    return Wiring(ways=ways, hosts=(0,) * ranks, words="shared memory", lending=lending)


def over_emulated(
    rank: int,
    rings: SharedMemory,
    bells: Bells,
    links: Sequence[Link],
    hosts: Sequence[int],
    shared: SharedLinks | None,
) -> Wiring:
    """Connect all ranks of this machine as if they were on several hosts with emulated links."""
    return Wiring(
        ways=RingWays(rank, len(links), rings, bells),
        hosts=hosts,
        words="an emulated link",
        emulated=links,
        shared=shared,
        is_strict=True,
    )


def over_tcp(network: TcpNetwork, rank: int, board: StatusBoard) -> Wiring:
    """Connect each rank as if on a host of its own. `board` is from `open_status_board` for the same network."""
    endpoint = network.open(rank)
    assert isinstance(board.bells, SocketBells)
    board.bells.watch(rank, endpoint)
    return Wiring(
        ways=TcpWays(endpoint),
        hosts=range(board.ranks),
        words=network.words,
        is_strict=network.encrypt,
        endpoint=endpoint,
    )


def open_status_board(memory: SharedMemory, ranks: int, network: TcpNetwork | None) -> StatusBoard:
    """Open the status board in this memory. Over a network, a sleeping rank also watches its sockets."""
    if network is None:
        return StatusBoard(memory, ranks)
    bells = SocketBells(memory, StatusBoard.bells_at(ranks), ranks, network.run_id.hex())
    return StatusBoard(memory, ranks, bells)
