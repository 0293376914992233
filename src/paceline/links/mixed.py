"""Two kinds of connections (ways): one to ranks of the same host, another to ranks of other hosts."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.links.port import WayIn, Ways
from paceline.links.sending import SendQueue


class MixedWays:
    """Ways that use `near` within a host and `far` between hosts. `hosts` has the host of each rank."""

    def __init__(self, near: Ways, far: Ways, hosts: Sequence[int], rank: int) -> None:
        self._kinds = [near if host == hosts[rank] else far for host in hosts]

    def out(self, to: int) -> SendQueue:
        return self._kinds[to].out(to)

    def into(self, source: int) -> WayIn:
        return self._kinds[source].into(source)
