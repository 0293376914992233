"""How a rank is joined to the others: through shared memory, over TCP, or by what a cluster makes of the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.clusters.process.status_board import StatusBoard
from paceline.costs.link import Link
from paceline.links.bells import Bells, SocketBells
from paceline.links.lending import Lending
from paceline.links.memory import SharedMemory
from paceline.links.port import Ways
from paceline.links.shared_memory import RingWays
from paceline.links.tcp import TcpEndpoint, TcpWays

__all__ = ["TcpNetwork", "Wiring", "open_status_board", "over_emulated", "over_memory", "over_tcp"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TcpNetwork:
    """What the ranks of a run share that talk over TCP."""

    run_id: bytes
    token: bytes
    encrypt: bool

    @property
    def words(self) -> str:
        """For people."""
        return "encrypted TCP" if self.encrypt else "TCP"

    def open(self, rank: int) -> TcpEndpoint:
        """A rank's endpoint, on this machine."""
        return TcpEndpoint(rank, run_id=self.run_id, encrypt=self.encrypt, token=self.token)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """One rank's connections."""

    ways: Ways
    hosts: Sequence[int]
    """The host of each rank. Those of one host share memory."""
    words: str
    """What connects them, for people."""
    lending: Lending | None = None
    """Memory of this rank from which others read messages without a copy. None: it shares no memory."""
    emulated: Link | None = None
    """Messages take as long as this link would."""
    is_strict: bool = False
    """Whether ranks may use no other way: a shortcut would avoid the emulated delay, or the encryption."""
    endpoint: TcpEndpoint | None = None
    """This rank's sockets, over TCP. Messages may then arrive after their sender has ended."""


def over_memory(rank: int, ranks: int, rings: SharedMemory, bells: Bells, lending: Lending) -> Wiring:
    """All ranks on this host."""
    ways = RingWays(rank, ranks, rings, bells, lending)
    return Wiring(ways=ways, hosts=(0,) * ranks, words="shared memory", lending=lending)


def over_emulated(rank: int, ranks: int, rings: SharedMemory, bells: Bells, link: Link) -> Wiring:
    """All ranks on this host, each as if on a host of its own."""
    ways = RingWays(rank, ranks, rings, bells)
    return Wiring(ways=ways, hosts=range(ranks), words="an emulated link", emulated=link, is_strict=True)


def over_tcp(network: TcpNetwork, rank: int, board: StatusBoard) -> Wiring:
    """Each rank as if on a host of its own. `board` is what `open_status_board` gave for the same network."""
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
    """The status board in this memory. Over a network, a rank that sleeps watches its sockets too."""
    if network is None:
        return StatusBoard(memory, ranks)
    bells = SocketBells(memory, StatusBoard.bells_at(ranks), ranks, network.run_id.hex())
    return StatusBoard(memory, ranks, bells)
