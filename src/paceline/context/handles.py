"""What is under way."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, Protocol, TypeVar

__all__ = ["Handle", "Sending"]

T_co = TypeVar("T_co", covariant=True)


class Handle(Protocol[T_co]):
    """An operation under way."""

    @property
    def done(self) -> bool:
        """Whether it has ended: with a result, with an error, or cancelled."""
        ...

    def cancel(self) -> None:
        """Stop it as soon as it can be stopped. A cancelled handle is done; awaiting it raises `Cancelled`."""
        ...

    def __await__(self) -> Generator[Any, Any, T_co]: ...


class Sending(Handle[None], Protocol):
    """A message on its way out."""

    def detach(self) -> Awaitable[None]:
        """Done when the tensor may be overwritten: what has not gone yet goes on from a copy.

        That is at once, unless the receiver is reading the tensor where it lies.
        """
        ...
