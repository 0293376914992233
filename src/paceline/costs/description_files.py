"""Cluster descriptions in YAML. Some are part of the package and are known by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from paceline.costs import times
from paceline.costs.description import ClusterDescription, HostGroup
from paceline.costs.devices import Device, device_of
from paceline.costs.link import Link
from paceline.costs.units import parse_bandwidth, parse_bytes
from paceline.errors import ConfigurationError, UnknownNameError

_FOLDER = Path(__file__).parent / "descriptions"
_SUFFIX = ".yaml"
_MOST_BYTES = 1_000_000
_DEVICE_KEYS = ("name", "flops", "efficiency", "memory_bandwidth", "memory")


def cluster_names() -> list[str]:
    """Return the names of the descriptions in the package."""
    return sorted(path.stem for path in _FOLDER.glob(f"*{_SUFFIX}"))


def load_cluster(source: str | os.PathLike[str], *, hosts: int | None = None) -> ClusterDescription:
    """Read the description of a cluster from a YAML file, or take one of the package by its name, such as "dgx-a100".

    `hosts` changes the number of hosts.
    """
    path = _path_of(source)
    found = _parse(path.stem, _read(path))
    return found if hosts is None else found.with_hosts(hosts)


def _path_of(source: str | os.PathLike[str]) -> Path:
    path = Path(source)
    is_name = isinstance(source, str) and path.name == source and path.suffix not in (_SUFFIX, ".yml")
    if not is_name:
        return path
    if source not in cluster_names():
        raise UnknownNameError("cluster", str(source), [*cluster_names(), "a YAML file"])
    return _FOLDER / f"{source}{_SUFFIX}"


def _read(path: Path) -> Mapping[str, Any]:
    import yaml  # imported late: only descriptions need it

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no annotations
        """Raises an error if a mapping has a key twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise ConfigurationError(str(key), "must be given once", str(path), "remove one of them")
            return super().construct_mapping(node, deep)

    remedy = "see docs/cluster_descriptions.md, or choose one by name"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigurationError("cluster", f"must have at most {_MOST_BYTES} bytes", str(path), remedy)
        content = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            "cluster", "must be a file that can be read", str(path), str(error)
        ) from None
    except yaml.YAMLError as error:
        words = " ".join(str(error).split())
        raise ConfigurationError("cluster", "must be a file in YAML", str(path), words) from None
    if not isinstance(content, Mapping):
        raise ConfigurationError("cluster", "must be a mapping of keys to values", str(path), remedy)
    return content


def _parse(name: str, content: Mapping[str, Any]) -> ClusterDescription:
    given = dict(content)
    _check_keys("cluster", given, _KEYS)
    if "link" not in given:
        raise ConfigurationError(
            "link", "must be given", "nothing", "write link: {bandwidth: 10Gbps, latency: 50us}"
        )
    values: dict[str, Any] = {"name": name, "groups": _groups(given)}
    for key, read in _READERS.items():
        if key in given:
            values[key] = read(given[key], key)
    return ClusterDescription(**values)


def _check_keys(where: str, given: object, known: tuple[str, ...]) -> None:
    if not isinstance(given, Mapping):
        remedy = f"write {{{known[0]}: …}}"
        raise ConfigurationError(where, f"must be a mapping with {', '.join(known)}", given, remedy)
    for key in given:
        if key not in known:
            raise UnknownNameError(f"a key of {where}", str(key), known)


def _groups(given: Mapping[str, Any]) -> tuple[HostGroup, ...]:
    hosts = given.get("hosts", 1)
    if not isinstance(hosts, list):
        return (HostGroup(hosts=hosts, ranks=given.get("ranks_per_host", 1)),)
    if "ranks_per_host" in given:
        remedy = "give ranks in each group of hosts"
        value = given["ranks_per_host"]
        raise ConfigurationError("ranks_per_host", "must not be given with a list of hosts", value, remedy)
    keys = tuple(each.name for each in fields(HostGroup))
    for group in hosts:
        _check_keys("a group of hosts", group, keys)
    return tuple(HostGroup(**group) for group in hosts)


def _link(value: Any, key: str) -> Link:
    _check_keys(key, value, ("bandwidth", "latency"))
    return Link(**value)


def _device(value: Any, key: str) -> Device:
    if not isinstance(value, Mapping):
        return device_of(value)
    _check_keys(key, value, _DEVICE_KEYS)
    for needed in ("flops", "memory_bandwidth", "memory"):
        if needed not in value:
            raise ConfigurationError(
                f"{key}.{needed}", "must be given", "nothing", "or name one: device: A100"
            )
    return Device(
        name=str(value.get("name", "device")),
        flops=_number(value["flops"], f"{key}.flops"),
        efficiency=_number(value.get("efficiency", 0.5), f"{key}.efficiency"),
        memory_bytes_per_s=parse_bandwidth(value["memory_bandwidth"], f"{key}.memory_bandwidth"),
        memory_bytes=parse_bytes(value["memory"], f"{key}.memory"),
    )


def _number(value: Any, key: str) -> float:
    """Return a number. YAML reads 312e12 as text, because it has no decimal point."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ConfigurationError(key, "must be a number", value, "write 312e12, for example") from None


def _times(value: Any, key: str) -> times.Times:
    return times.parse(str(value), key)


def _delay(value: Any, key: str) -> times.Times | dict[int, times.Times]:
    if isinstance(value, Mapping):
        return {rank: _times(each, f"{key}[{rank}]") for rank, each in value.items()}
    return _times(value, key)


def _as_given(value: Any, key: str) -> Any:
    return value


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "link": _link,
    "inside": _link,
    "device": _device,
    "compute": _times,
    "card": _as_given,
    "oversubscription": _number,
    "order": _as_given,
    "slow": _as_given,
    "delay": _delay,
    "price_per_hour": _number,
}
_KEYS = ("hosts", "ranks_per_host", *_READERS)
