"""Placement of a run's ranks on a Ray cluster: one placement group, with one bundle of resources for each rank."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from paceline.clusters.ray.connection import answered, import_ray
from paceline.errors import ConfigurationError, RunError
from paceline.system import interrupts

_REMOVE_S = 2.0  # seconds to wait for freed resources, which other jobs may take
_POLL_S = 1.0  # how often a wait checks for an interrupt; Ray counts whole seconds
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


class Placement:
    """Resources held for a block. Ranks of one host are adjacent; the ranks of this host come first."""

    def __init__(
        self, ranks: int, resources: Mapping[str, float], *, spread: bool, deadline_s: float
    ) -> None:
        self._ranks = ranks
        self._resources = dict(resources)
        self._spread = spread
        self._deadline_s = deadline_s

    def __enter__(self) -> Placement:
        ray = import_ray()
        nodes = [node for node in answered(ray.nodes) if node["Alive"]]
        self._free_before = answered(ray.available_resources)
        check_room(self._ranks, self._resources, nodes)
        strategy = "SPREAD" if self._spread else "PACK"
        self._group = answered(
            lambda: ray.util.placement_group([self._resources] * self._ranks, strategy=strategy)
        )
        try:
            if not self._wait():
                raise RunError(answered(lambda: self._what_lacks(nodes)))
            self._bundles = answered(lambda: self._in_order(ray.get_runtime_context().get_node_id()))
        except BaseException:
            self._remove()
            raise
        by_id = {node["NodeID"]: node for node in nodes}
        hosts = [by_id.get(node, {}) for _, node in self._bundles]
        self.addresses: list[str] = [host.get("NodeManagerAddress", "127.0.0.1") for host in hosts]
        self.host_names: list[str] = [host.get("NodeManagerHostname", "unknown") for host in hosts]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _wait(self) -> bool:
        """Return whether Ray provided the resources in time."""
        until_s = time.monotonic() + self._deadline_s
        while not self._group.wait(_POLL_S):
            interrupts.safe_point()
            if time.monotonic() > until_s:
                return False
        return True

    def options(self) -> list[dict[str, Any]]:
        """Return the options of each rank's actor."""
        strategies = import_ray().util.scheduling_strategies
        taken: dict[str, Any] = {"num_cpus": 0}
        taken |= {_OPTIONS[name]: amount for name, amount in self._resources.items() if name in _OPTIONS}
        taken["resources"] = {n: amount for n, amount in self._resources.items() if n not in _OPTIONS}
        return [
            {
                **taken,
                "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(
                    placement_group=self._group, placement_group_bundle_index=bundle
                ),
            }
            for bundle, _ in self._bundles
        ]

    def _in_order(self, own_node: str) -> list[tuple[int, str]]:
        nodes: dict[int, str] = import_ray().util.placement_group_table(self._group)["bundles_to_node_id"]
        first = {node: bundle for bundle, node in sorted(nodes.items(), reverse=True)}
        return sorted(nodes.items(), key=lambda each: (each[1] != own_node, first[each[1]], each[0]))

    def _what_lacks(self, nodes: Sequence[Mapping[str, Any]]) -> str:
        free = import_ray().available_resources()
        total = import_ray().cluster_resources()
        short = [
            f"{name}: {amount * self._ranks:g} asked, {free.get(name, 0):g} free of {total.get(name, 0):g}"
            for name, amount in self._resources.items()
        ]
        return (
            f"the Ray cluster was too busy for {self._deadline_s:g} s: {'; '.join(short)}, on {len(nodes)} hosts; "
            "wait until other jobs end, use fewer workers or resources, or raise deadline_s"
        )

    def _remove(self) -> None:
        """Remove the placement group. Ray also stops the actors in it."""
        with contextlib.suppress(Exception):  # a cluster that has ended holds no resources
            answered(self._give_back, more_s=_REMOVE_S)

    def _give_back(self) -> None:
        import_ray().util.remove_placement_group(self._group)
        until_s = time.monotonic() + _REMOVE_S
        while time.monotonic() < until_s and not self._is_free():
            time.sleep(0.02)

    def _is_free(self) -> bool:
        """Return whether the resources are free again. A run that starts before that would be placed unevenly."""
        ray = import_ray()
        if ray.util.placement_group_table(self._group).get("state") != "REMOVED":
            return False
        free = ray.available_resources()
        return all(free.get(name, 0) >= self._free_before.get(name, 0) for name in self._resources)


def check_room(ranks: int, resources: Mapping[str, float], nodes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a request that exceeds the total resources of the cluster."""
    if sum(_fits(node["Resources"], resources) for node in nodes) >= ranks:
        return
    asked = f"{ranks} ranks of {_words(resources)}"
    have = "; ".join(
        f"{node['NodeManagerHostname']} has {_words({n: node['Resources'].get(n, 0) for n in resources})}"
        for node in nodes
    )
    room = sum(_fits(node["Resources"], resources) for node in nodes)
    remedy = f"there is room for {room} ({have}): use fewer workers or resources, or add hosts"
    raise ConfigurationError("resources", "must be available in the Ray cluster", asked, remedy)


def _fits(have: Mapping[str, float], asked: Mapping[str, float]) -> int:
    """Return the number of ranks that fit on a host."""
    return int(min(have.get(name, 0.0) / amount + 1e-9 for name, amount in asked.items()))


def _words(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items())
