"""Hosts of a cluster: which rank is on which host, and the links, cards and switch between the ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.costs.link import Link
from paceline.costs.transfers import SharedLinks
from paceline.costs.units import check_positive, format_bandwidth, parse_bandwidth
from paceline.errors import ConfigurationError, UnknownNameError

ORDERS = ("block", "cyclic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Hosts and links of a cluster."""

    hosts: int | Sequence[int]
    """Number of hosts, or the number of workers on each host."""
    link: Link
    """Link between hosts."""
    inside: Link
    """Link between ranks of one host."""
    card: str | float | None = None
    """Bandwidth of the network card of a host. None if cards are never a bottleneck."""
    oversubscription: float = 1.0
    """Bandwidth of all hosts together, divided by the bandwidth of the switch."""
    order: str = "block"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UnknownNameError("order", str(self.order), ORDERS)
        check_positive(self.oversubscription, "oversubscription", "write 2.0 for half of the bandwidth")
        if self.oversubscription < 1:
            bound = "must be at least 1"
            raise ConfigurationError("oversubscription", bound, self.oversubscription, "1.0 is a full switch")
        if self.card is not None:
            parse_bandwidth(self.card, "card")
        given = {"card": self.card, "oversubscription": _unless_default(self.oversubscription, 1.0)}
        for argument, value in given.items():
            if value is not None and self.count == 1:
                remedy = (
                    "give the number of hosts, or omit it, because a single host sends nothing to other hosts"
                )
                raise ConfigurationError(argument, "needs several hosts", value, remedy)
        if self.oversubscription > 1 and not self._rate_of_host:
            remedy = "give card, or a link with a bandwidth"
            bound = "needs a card or a link of finite bandwidth"
            raise ConfigurationError("oversubscription", bound, self.oversubscription, remedy)
        if not isinstance(self.hosts, int) and self.order == "cyclic":
            remedy = "give the number of hosts, or the order block"
            raise ConfigurationError("order", "must be block if hosts have given workers", self.order, remedy)

    @property
    def count(self) -> int:
        """Number of hosts."""
        return self.hosts if isinstance(self.hosts, int) else len(self.hosts)

    def place(self, ranks: int, workers: int) -> tuple[int, ...]:
        """Return the host of each rank. Ranks after the workers are servers, which are spread over all hosts."""
        if not isinstance(self.hosts, int):
            own = [host for host, count in enumerate(self.hosts) for _ in range(count)][:workers]
            return (*own, *(rank % self.count for rank in range(ranks - len(own))))
        if self.order == "cyclic":
            return tuple(rank % self.hosts for rank in range(ranks))
        return tuple(rank * self.hosts // ranks for rank in range(ranks))

    @property
    def is_shared(self) -> bool:
        """Whether cards or the switch can be a bottleneck."""
        return self.card is not None or self.oversubscription > 1

    def link_of(self, host: int, other: int) -> Link:
        """Return the link between ranks of two hosts, or of one."""
        return self.inside if host == other else self.link

    def shared(self, hosts: Sequence[int]) -> SharedLinks | None:
        """Return the cards and the switch in their initial state. None if they are never a bottleneck."""
        if not self.is_shared:
            return None
        return SharedLinks(hosts, *self.seconds_per_byte(hosts))

    def seconds_per_byte(self, hosts: Sequence[int]) -> tuple[float, float]:
        """Return the seconds per byte of a card and of the switch. 0 for a resource that is never a bottleneck."""
        card_s = 0.0 if self.card is None else 1 / parse_bandwidth(self.card, "card")
        if self.oversubscription == 1:
            return card_s, 0.0
        bytes_per_s = self._rate_of_host * (self.count if self.card is not None else len(hosts))
        return card_s, self.oversubscription / bytes_per_s

    @property
    def _rate_of_host(self) -> float:
        """Bytes per second of a card, or of one rank without a card. 0 if infinite."""
        rate = self.link.bytes_per_s if self.card is None else parse_bandwidth(self.card, "card")
        return 0.0 if math.isinf(rate) else rate

    @property
    def words(self) -> list[str]:
        """Text for the description of a cluster. Empty for one host."""
        if self.count == 1:
            return []
        words = [f"{self.count} hosts, inside {self.inside}"]
        if self.card is not None:
            words.append(f"cards {format_bandwidth(parse_bandwidth(self.card, 'card'))}")
        if self.oversubscription > 1:
            words.append(f"switch oversubscribed {self.oversubscription:g} times")
        return words + ([f"{self.order} ranks"] if self.order != "block" else [])


def _unless_default(value: float, default: float) -> float | None:
    return None if value == default else value


def check_hosts(hosts: object, workers: int) -> int | tuple[int, ...]:
    """Return the number of hosts, or the workers of each host. Raise an error if the workers do not fit."""
    if isinstance(hosts, Sequence) and not isinstance(hosts, str):
        counts = tuple(hosts)
        if not counts or not all(_is_count(each) for each in counts) or sum(counts) != workers:
            bound = f"must be positive numbers with a sum of {workers}, the number of workers"
            raise ConfigurationError("hosts", bound, list(counts), "or give the number of hosts")
        return counts if len(counts) > 1 else 1
    if not isinstance(hosts, int) or not _is_count(hosts) or hosts > workers:
        raise ConfigurationError("hosts", f"must be a whole number from 1 to {workers}", hosts)
    return hosts


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
