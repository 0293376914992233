"""`ctx.net`: communication between ranks."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.schedules.collectives.collective import Collective

ANY = -1
"""Source argument of `recv` that accepts a message from any rank."""

Combine = Literal["copy", "sum", "max", "min"]
"""How `recv` treats the given tensor: overwrite it, or combine it with the received one."""


class Message(NamedTuple):
    """A received message."""

    source: int
    tag: int
    tensor: Tensor
    header: tuple[float, ...] = ()
    """Up to four numbers chosen by the strategy. Integers keep their type."""


class Window(Protocol):
    """Memory shared by all ranks of one host, as a matrix: `tensor[row]` is a flat tensor."""

    @property
    def tensor(self) -> Tensor: ...

    def barrier(self) -> Awaitable[None]:
        """Wait until every rank of the window's net has called `barrier` as often as this rank."""
        ...

    def reduce(
        self, columns: slice, rows: Sequence[int], into: Tensor, combine: Combine = "sum"
    ) -> Awaitable[None]:
        """Combine `rows`, in that order, over `columns`, and write the result to `into`."""
        ...


class Net(Protocol):
    """A communication group. Ranks are positions in it: 0 to `size` - 1. `ctx.net` contains all ranks."""

    @property
    def rank(self) -> int:
        """Position of this rank."""
        ...

    @property
    def size(self) -> int: ...

    @property
    def hosts(self) -> Sequence[int]:
        """Host number of each rank. Ranks of one host can open a window together."""
        ...

    @property
    def shares_memory(self) -> bool:
        """Whether all ranks are on one host and its shared memory is the fastest transport between them."""
        ...

    def send(
        self, to: int, tensor: Tensor, *, tag: int = 0, header: tuple[float, ...] = ()
    ) -> Awaitable[None]:
        """Send a tensor. Done when the tensor may be overwritten."""
        ...

    def recv(
        self, source: int, into: Tensor | None = None, *, combine: Combine = "copy", tag: int = 0
    ) -> Awaitable[Message]:
        """Receive the next message with this tag from `source` (or from `ANY`), combined with `into` if given.

        A receive from `ANY` raises `PeerLost` once for each lost rank. The caller may then receive again: from the
        other ranks, or from another program of its own rank. If no further message is possible, `PeerLost` is raised
        again.

        A receive that raises an error consumes no message: a caller that catches the error may receive it again. After
        a `DeadlineError` only a started receive stays pending, until it is cancelled.
        """
        ...

    def execute(self, collective: Collective, data: Tensor, *, combine: Combine) -> Awaitable[None]:
        """Take part in a collective of all ranks on `data`. `data` is flat and contiguous, and is overwritten."""
        ...

    def window(self, name: str, *, rows: int, like: Tensor) -> Window:
        """Return memory shared by all ranks (on one host): `rows` rows with the size and dtype of `like`."""
        ...

    def split(self, ranks: Sequence[int]) -> Net:
        """Return the net of some of these ranks, in this order, including this rank. Equal `ranks` return the same net.

        Messages and collectives of different nets are independent.
        """
        ...

    def count(self) -> int:
        """Increment a counter that all ranks of the run share, and return it. Numbers are unique, without gaps."""
        ...
