"""What a strategy declares about itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from paceline.context import Context, Strategy


class _Defaults(Strategy):
    """A strategy that declares nothing."""


_DEFAULTS = _Defaults()


@dataclass(frozen=True, kw_only=True, slots=True)
class Declarations:
    """Members of `Strategy`. A strategy needs only `roles` and its programs: what its class lacks has the default."""

    expendable: Sequence[str]
    replicates: Sequence[str]
    holds_parts: bool
    in_step: bool
    state_at: str
    cuts_model: bool
    divides_batch: Callable[[int], bool]
    syncs_batch_norm: Callable[[int], bool]
    steps_ahead: Callable[[int], int]
    prepare: Callable[[Context], None]

    @classmethod
    def of(cls, strategy: Any) -> Declarations:
        names = [each.name for each in fields(cls)]
        return cls(**{name: getattr(strategy, name, getattr(_DEFAULTS, name)) for name in names})
