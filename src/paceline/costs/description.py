"""Description of a cluster: hosts, devices, links. The same for simulation, prediction, planning and emulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from paceline.costs.devices import Device
from paceline.costs.fabric import Fabric
from paceline.costs.link import Link
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.costs.units import check_positive
from paceline.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """Equal hosts."""

    hosts: int = 1
    ranks: int = 1
    """Ranks on each host."""
    slow: float = 1.0
    """Factor on the compute time of these hosts: 2.0 for hosts of half the speed."""

    def __post_init__(self) -> None:
        for argument, value in {"hosts": self.hosts, "ranks": self.ranks}.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(argument, "must be a whole number of at least 1", value)
        check_positive(self.slow, "slow", "write 2.0 for hosts of half the speed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """A cluster. Create it with `pl.load_cluster`, and use it with `pl.Simulated.of` or `pl.Local.of`."""

    name: str
    groups: tuple[HostGroup, ...]
    link: Link
    """Link between hosts."""
    inside: Link = field(default_factory=lambda: Link("100Gbps", "1us"))
    """Link between ranks of one host."""
    device: Device | None = None
    """Compute device of each rank. None to measure computations on this machine."""
    compute: Times | None = None
    """Seconds of one gradient. None to derive them from the device."""
    card: str | float | None = None
    oversubscription: float = 1.0
    order: str = "block"
    slow: Mapping[int, float] = field(default_factory=dict)
    """Factor on the compute time of single ranks, besides that of their hosts."""
    delay: Times | Mapping[int, Times] | None = None
    price_per_hour: float | None = None
    """Price of one host. None if unknown."""

    def __post_init__(self) -> None:
        if not self.groups:
            raise ConfigurationError("hosts", "must be at least one host", [], "give their number")
        if self.device is not None and self.compute is not None:
            remedy = "device and compute both set the seconds: omit one of them"
            raise ConfigurationError("compute", "must not be given with a device", self.compute, remedy)
        if self.price_per_hour is not None:
            check_positive(self.price_per_hour, "price_per_hour", "write 32.77, the price of one host")
        Stragglers(slow=self.slow, delay=self.delay).check(self.workers)
        # Raises an error for contradictions.
        self.fabric(_compact(self.ranks_of_hosts) if self.hosts > 1 else 2)

    @property
    def ranks_of_hosts(self) -> tuple[int, ...]:
        """Number of ranks of each host."""
        return tuple(group.ranks for group in self.groups for _ in range(group.hosts))

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.ranks_of_hosts)

    @property
    def workers(self) -> int:
        """Number of ranks of all hosts."""
        return sum(self.ranks_of_hosts)

    def fabric(self, hosts: int | Sequence[int]) -> Fabric:
        """Return the links of some hosts. A single host has no card: nothing leaves it."""
        several = hosts != 1
        return Fabric(
            hosts=hosts,
            link=self.link,
            inside=self.inside,
            card=self.card if several else None,
            oversubscription=self.oversubscription if several else 1.0,
            order=self.order,
        )

    def with_hosts(self, hosts: int) -> ClusterDescription:
        """Return the same cluster with another number of hosts. All hosts must be equal."""
        if len(self.groups) > 1:
            remedy = "change the number in its file"
            raise ConfigurationError("hosts", "must not be given for different hosts", hosts, remedy)
        return replace(self, groups=(replace(self.groups[0], hosts=hosts),))

    def arguments(self, workers: int | None = None) -> dict[str, Any]:
        """Return the arguments that `pl.Simulated` and an emulated `pl.Local` have in common.

        `workers` uses some of the ranks only: the first ones. None for all.
        """
        counts = _first(self.ranks_of_hosts, self.workers if workers is None else workers)
        fabric = self.fabric(_compact(counts))
        factors = [group.slow for group in self.groups for _ in range(group.hosts)]
        ranks = sum(counts)
        slow = {
            rank: factors[host] * self.slow.get(rank, 1.0)
            for rank, host in enumerate(fabric.place(ranks, ranks))
        }
        return {
            "workers": ranks,
            **{each.name: getattr(fabric, each.name) for each in fields(fabric)},
            "slow": {rank: factor for rank, factor in slow.items() if factor != 1},
            "delay": self.delay,
            "compute": self.compute,
        }


def _compact(counts: tuple[int, ...]) -> int | tuple[int, ...]:
    """Return the number of hosts if they have equal numbers of ranks."""
    return len(counts) if len(set(counts)) == 1 else counts


def _first(counts: Sequence[int], workers: int) -> tuple[int, ...]:
    """Return the ranks of each host if only the first `workers` ranks are used."""
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= sum(counts):
        bound = f"must be a whole number from 1 to {sum(counts)}, the ranks of the cluster"
        raise ConfigurationError("workers", bound, workers, "give more hosts, or omit it for all ranks")
    kept, left = [], workers
    for count in counts:
        if left:
            kept.append(min(count, left))
            left -= kept[-1]
    return tuple(kept)
