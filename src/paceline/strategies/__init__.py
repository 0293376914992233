"""One file per algorithm, named as the literature names it. The table below is the only list of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from paceline.context import Strategy
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.strategies.all_reduce import AllReduce
from paceline.strategies.async_sgd import Async
from paceline.strategies.central_storage import CentralStorage
from paceline.strategies.decentralized import Decentralized
from paceline.strategies.diloco import DiLoCo
from paceline.strategies.fedadam import FedAdam
from paceline.strategies.fedavg import FedAvg
from paceline.strategies.fedavgm import FedAvgM
from paceline.strategies.fedprox import FedProx
from paceline.strategies.hogwild import Hogwild
from paceline.strategies.k_async import KAsync
from paceline.strategies.k_batch_async import KBatchAsync
from paceline.strategies.k_batch_sync import KBatchSync
from paceline.strategies.k_sync import KSync
from paceline.strategies.local_sgd import LocalSGD
from paceline.strategies.map_reduce import MapReduce
from paceline.strategies.single import Single
from paceline.strategies.ssp import StaleSynchronous
from paceline.strategies.sync import Sync

__all__ = ["ALIASES", "STRATEGIES", "describe", "parse"]

STRATEGIES: Mapping[str, type[Any]] = {
    "single": Single,
    "map-reduce": MapReduce,
    "all-reduce": AllReduce,
    "sync": Sync,
    "central-storage": CentralStorage,
    "k-sync": KSync,
    "k-batch-sync": KBatchSync,
    "async": Async,
    "k-async": KAsync,
    "k-batch-async": KBatchAsync,
    "ssp": StaleSynchronous,
    "hogwild": Hogwild,
    "decentralized": Decentralized,
    "local-sgd": LocalSGD,
    "diloco": DiLoCo,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
}

ALIASES: Mapping[str, str] = {
    "one-device": "single",
    "mirrored": "all-reduce",
    "multi-worker-mirrored": "all-reduce",
    "parameter-server": "async",
}
"""Names that TensorFlow users know, of strategies that have another name here."""


def parse(spec: str | Strategy) -> Strategy:
    """A strategy from words such as "all-reduce:algorithm=ring"; a strategy itself is returned as it is."""
    if not isinstance(spec, str):
        if callable(getattr(spec, "roles", None)) and not isinstance(spec, type):
            return spec
        raise ConfigurationError(
            "strategy",
            "must be a name or an object with a method roles(workers)",
            spec,
            "see paceline strategies",
        )
    name, _, rest = spec.partition(":")
    name = ALIASES.get(name, name)
    if name not in STRATEGIES:
        raise UnknownNameError("strategy", name, (*STRATEGIES, *ALIASES))
    kind = STRATEGIES[name]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, equals, text = item.partition("=")
        key = key.strip().replace("-", "_")
        if key not in fields:
            raise UnknownNameError(f"parameter of {name}", key, fields)
        if not equals:
            raise ConfigurationError(f"{name}:{key}", "must be given a value", item, f"write {name}:{key}=…")
        values[key] = _convert(f"{name}:{key}", fields[key], text.strip())
    strategy: Strategy = kind(**values)
    return strategy


def describe(strategy: Strategy) -> str:
    """The words that `parse` would turn into this strategy."""
    name = next((n for n, kind in STRATEGIES.items() if type(strategy) is kind), type(strategy).__name__)
    if not dataclasses.is_dataclass(strategy):
        return name
    changed = [
        f"{field.name}={_word(getattr(strategy, field.name))}"
        for field in dataclasses.fields(strategy)
        if getattr(strategy, field.name) != field.default
    ]
    return f"{name}:{','.join(changed)}" if changed else name


def _word(value: object) -> object:
    """A function, which has no words, by its name."""
    return getattr(value, "__name__", value)


_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


def _convert(argument: str, field: dataclasses.Field[Any], text: str) -> Any:
    """A text as the field's annotated type: int, float, bool or str, each also optional."""
    wanted = str(field.type).removesuffix("| None").strip()
    try:
        if wanted == "bool":
            if text.lower() not in _TRUE + _FALSE:
                raise ValueError
            return text.lower() in _TRUE
        return {"int": int, "float": float}.get(wanted, str)(text)
    except ValueError:
        raise ConfigurationError(
            argument, f"must be of type {wanted}", text, f"the default is {field.default!r}"
        ) from None
