"""Handles of started operations."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Handle(Protocol[T_co]):
    """A started operation."""

    @property
    def done(self) -> bool:
        """Whether the operation has ended: with a result, with an error, or cancelled."""
        ...

    def cancel(self) -> None:
        """Cancel the operation as soon as possible. A cancelled handle is done; awaiting it raises `Cancelled`."""
        ...

    def __await__(self) -> Generator[Any, Any, T_co]: ...
