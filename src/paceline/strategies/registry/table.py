"""The table of strategies. It is the only list of them. Each algorithm has one file, under its name in the literature.

Strategies of other packages are added to the same table: by `register`, or by an entry point of the group
`paceline.strategies`. Entry points are loaded only when a requested name is not in the table, or when all strategies
are listed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
from paceline.strategies.hybrid import Hybrid
from paceline.strategies.k_async import KAsync
from paceline.strategies.k_batch_async import KBatchAsync
from paceline.strategies.k_batch_sync import KBatchSync
from paceline.strategies.k_sync import KSync
from paceline.strategies.layers import Layers
from paceline.strategies.local_sgd import LocalSGD
from paceline.strategies.map_reduce import MapReduce
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.registry.aliases import ALIASES, answer
from paceline.strategies.single import Single
from paceline.strategies.ssp import StaleSynchronous
from paceline.strategies.sync import Sync
from paceline.strategies.tensor import Tensor
from paceline.strategies.zero import Zero

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

__all__ = [
    "ALIASES",
    "ENTRY_POINTS",
    "STRATEGIES",
    "describe",
    "find",
    "is_known",
    "load_entry_points",
    "parse",
    "register",
    "spell",
]

STRATEGIES: dict[str, type[Any]] = {
    "single": Single,
    "map-reduce": MapReduce,
    "all-reduce": AllReduce,
    "sync": Sync,
    "central-storage": CentralStorage,
    "layers": Layers,
    "pipeline": Pipeline,
    "tensor": Tensor,
    "zero": Zero,
    "hybrid": Hybrid,
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

ENTRY_POINTS = "paceline.strategies"
"""The entry point group for strategies of installed packages."""


def register(name: str, strategy_class: type[Any]) -> None:
    """Register a strategy in this process: `register("mine", Mine)` enables `pl.train(task, "mine:k=2")`.

    The class must be a dataclass with a method `roles`. Its fields are the strategy's parameters. Registering the
    same class again is allowed, because a notebook cell may run twice. An installed package needs no call if it has
    an entry point of the group `paceline.strategies`. A registered name has priority over an entry point.
    """
    _add("name", name, "strategy_class", strategy_class)


def _add(name_argument: str, name: str, class_argument: str, kind: type[Any]) -> None:
    _check_name(name_argument, name)
    _check_class(class_argument, kind)
    taken = STRATEGIES.get(word_of(name))
    if taken is not None and _path(taken) != _path(kind):
        bound = f"must be unused, but {_path(taken)} has it"
        raise ConfigurationError(name_argument, bound, name, f"choose another for {_path(kind)}")
    STRATEGIES[name] = kind


def _check_name(argument: str, name: object) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[^\s:,=]+", name):
        bound = "must be a name without spaces, colons, commas and equals signs"
        raise ConfigurationError(argument, bound, name, 'choose one such as "my-strategy"')


def _check_class(argument: str, kind: object) -> None:
    if not isinstance(kind, type):
        raise ConfigurationError(argument, "must be a class", kind, "pass the class, not an instance")
    if not dataclasses.is_dataclass(kind):
        remedy = "put @dataclass(frozen=True, kw_only=True) before it"
        raise ConfigurationError(argument, "must be a dataclass", kind, remedy)
    if not callable(getattr(kind, "roles", None)):
        remedy = "add a method that returns the role of each rank (see paceline.context.Strategy)"
        raise ConfigurationError(argument, "must have a method roles(workers)", kind, remedy)


def _path(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def is_known(spec: str) -> bool:
    """Return whether the name in a strategy spec is in the table or has an entry point."""
    name = spec.partition(":")[0]
    return name in STRATEGIES or name in ALIASES or name in _entry_points().names


def load_entry_points() -> dict[str, ConfigurationError]:
    """Add the strategies of all entry points to the table. Return the errors of those that failed, by name."""
    missing = {}
    for name in sorted(_entry_points().names):
        try:
            _load(name)
        except ConfigurationError as error:
            missing[name] = error
    return missing


def _entry_points() -> EntryPoints:
    from importlib.metadata import entry_points  # slow to import

    return entry_points(group=ENTRY_POINTS)


def _load(name: str) -> None:
    points = tuple(_entry_points().select(name=name))
    packages = ", ".join(sorted(map(_package, points)))
    if len(points) != 1:
        raise ConfigurationError(
            f"strategy {name}", "must be registered by one package", packages, "uninstall the others"
        )
    (point,) = points
    argument = f"strategy {name} of the package {packages}"
    try:
        kind = point.load()
    except Exception as error:
        bound, got = f"must be importable from {point.value}", f"{type(error).__name__}: {error}"
        raise ConfigurationError(argument, bound, got, "repair or uninstall the package") from error
    _add(f"the name of the {argument}", name, argument, kind)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "(unknown)"


def find(name: str) -> type[Any]:
    """Return the class of a strategy name. Load its entry point if needed."""
    name = word_of(name)
    if name not in STRATEGIES:
        names = _entry_points().names
        if name not in names:
            raise answer(name) or UnknownNameError("strategy", name, {*STRATEGIES, *names}, ALIASES)
        _load(name)
    return STRATEGIES[name]


def spell(spec: str) -> str:
    """Return a strategy spec with an alias replaced by our name."""
    name, colon, rest = spec.partition(":")
    ours = ALIASES.get(name, name)
    return f"{ours}{',' if ':' in ours and colon else colon}{rest}"


def word_of(name: str) -> str:
    """Return our name of a strategy, given a name of ours or an alias."""
    return ALIASES.get(name, name).partition(":")[0]


def parse(spec: str | Strategy) -> Strategy:
    """Return the strategy of a spec such as "all-reduce:algorithm=ring". Return a strategy object unchanged."""
    if not isinstance(spec, str):
        if callable(getattr(spec, "roles", None)) and not isinstance(spec, type):
            return spec
        raise ConfigurationError(
            "strategy",
            "must be a name or an object with a method roles(workers)",
            spec,
            "run `paceline strategies` for a list",
        )
    kind = find(spec.partition(":")[0])
    spec = spell(spec)
    name, colon, rest = spec.partition(":")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    values: dict[str, Any] = {}
    for item in rest.split(",") if colon else ():
        key, text = _option(name, spec, item, fields)
        if key in values:
            remedy = f"write {name}:{key}={text}, or the other value"
            raise ConfigurationError(f"{name}:{key}", "must be given once", spec, remedy)
        values[key] = _convert(f"{name}:{key}", fields[key], text)
    for key, field in fields.items():
        if key not in values and not _has_default(field):
            raise ConfigurationError(f"{name}:{key}", "must be given a value", spec, f"write {name}:{key}=…")
    strategy: Strategy = kind(**values)
    return strategy


def _option(name: str, spec: str, item: str, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the value of one parameter, such as "k=2"."""
    key, equals, text = (part.strip() for part in item.partition("="))
    if not key and not equals:
        bound = "must have a parameter after the colon and after each comma"
        raise ConfigurationError("strategy", bound, spec, f"such as {name}:{next(iter(fields), 'k')}=…")
    key = key.replace("-", "_")
    if key == "codec" and key not in fields:
        raise _no_codec(name, text)
    if key not in fields:
        raise UnknownNameError(f"parameter of {name}", key, fields)
    if not text:
        raise ConfigurationError(f"{name}:{key}", "must be given a value", spec, f"write {name}:{key}=…")
    return key, text


def _no_codec(name: str, codec: str) -> ConfigurationError:
    reason = getattr(STRATEGIES[name], "why_no_codec", "")
    able = [
        other for other, kind in STRATEGIES.items() if "codec" in getattr(kind, "__dataclass_fields__", {})
    ]
    bound = f"must be left out{f': {reason}' if reason else ''}"
    return ConfigurationError(
        f"{name}:codec", bound, codec, f"these encode what they send: {', '.join(able)}"
    )


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def describe(strategy: Strategy) -> str:
    """Return the spec of this strategy. `parse` turns it into an equal strategy."""
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
    """Return the name of a function, or the value itself. A function has no textual form.

    5.0 and 5 are equal, so they have the same text.
    """
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return getattr(value, "__name__", value)


_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


def _convert(argument: str, field: dataclasses.Field[Any], text: str) -> Any:
    """Convert a text to the field's annotated type: int, float, bool or str, each also optional."""
    # Annotations are strings only in modules with `from __future__ import annotations`.
    annotated = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    wanted = annotated.removesuffix("| None").strip()
    try:
        if wanted == "bool":
            if text.lower() not in _TRUE + _FALSE:
                raise ValueError
            return text.lower() in _TRUE
        return {"int": int, "float": float}.get(wanted, str)(text)
    except ValueError:
        default = field.default is not dataclasses.MISSING
        remedy = f"the default is {field.default!r}" if default else ""
        raise ConfigurationError(argument, f"must be of type {wanted}", text, remedy) from None
