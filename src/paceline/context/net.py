"""`ctx.net`: how ranks talk."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.schedules.collective import Collective

__all__ = ["ANY", "Combine", "Message", "Net", "Window"]

ANY = -1
"""As the source of `recv`: whichever rank's message comes first."""

Combine = Literal["copy", "sum", "max", "min"]
"""What `recv` does with the tensor that it is given: overwrite it, or combine it with what arrives."""


class Message(NamedTuple):
    """What `recv` returns."""

    source: int
    tag: int
    tensor: Tensor
    header: tuple[float, ...] = ()
    """Up to four numbers of the strategy's own that ride along: whole ones stay whole."""


class Window(Protocol):
    """Memory that all ranks of one host see, as a matrix: `tensor[row]` is a flat tensor."""

    @property
    def tensor(self) -> Tensor: ...

    def barrier(self) -> Awaitable[None]:
        """Wait until every rank of the window's net has come to as many of its barriers as this rank."""
        ...

    def reduce(
        self, columns: slice, rows: Sequence[int], into: Tensor, combine: Combine = "sum"
    ) -> Awaitable[None]:
        """Write the combination of `rows`, in that order, over `columns` to `into`."""
        ...


class Net(Protocol):
    """A group of ranks that talk. Ranks are positions in it: 0 to `size` - 1. `ctx.net` is everybody."""

    @property
    def rank(self) -> int:
        """This rank's own position."""
        ...

    @property
    def size(self) -> int: ...

    @property
    def hosts(self) -> Sequence[int]:
        """The host of each rank, as a number. Ranks of one host can open a window together."""
        ...

    @property
    def shares_memory(self) -> bool:
        """Whether all ranks share a host and its memory is the quickest way between them."""
        ...

    def send(
        self, to: int, tensor: Tensor, *, tag: int = 0, header: tuple[float, ...] = ()
    ) -> Awaitable[None]:
        """Done when the tensor may be overwritten."""
        ...

    def recv(
        self, source: int, into: Tensor | None = None, *, combine: Combine = "copy", tag: int = 0
    ) -> Awaitable[Message]:
        """The next message of this tag from `source` (or from `ANY`), combined with `into` if given.

        Who waits for `ANY` is told of each lost rank once, by `PeerLost`, and may then wait on: for the other ranks, or
        for another program of its own rank. If no message can come any more, it is told again.

        A wait that ends in an error takes no message: whoever catches the error may wait for it again. Only a receive
        that was started goes on after a `DeadlineError`, until it is cancelled.
        """
        ...

    def execute(self, collective: Collective, data: Tensor, *, combine: Combine) -> Awaitable[None]:
        """Take this rank's part in a collective of all ranks on `data`, flat and contiguous, which is overwritten."""
        ...

    def window(self, name: str, *, rows: int, like: Tensor) -> Window:
        """Memory shared by all ranks, which must be of one host: `rows` rows of the size and dtype of `like`."""
        ...

    def split(self, ranks: Sequence[int]) -> Net:
        """The net of some of these ranks, in this order; this one among them. Equal ranks give the same net.

        Messages and collectives of one net never meet those of another.
        """
        ...

    def count(self) -> int:
        """Count up, together with all ranks of the run: no two get the same number, and none is left out."""
        ...
