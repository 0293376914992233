"""A task's training loop: one or several models, a user-defined step, the order of turns, and intervals.

A task with a generator as its step trains several models in turn. Each yield is one update of one model: the run's
step number s is the turn `turns[s % len(turns)]`, on every rank and in every cluster.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from paceline.errors import ConfigurationError, UnknownNameError
from paceline.task.checks import check_model, require

if TYPE_CHECKING:
    from torch import nn

Maker: TypeAlias = "Callable[[Any], Any]"
Module = TypeVar("Module", bound="nn.Module")

_EVERY = ("step", "epoch")
PRECISIONS = ("fp32", "bf16", "fp16")


# Several models


def model_names(model: object) -> tuple[str, ...]:
    """Return the names that optimizers may use: models or a module's children. Empty for a factory."""
    from torch import nn

    if isinstance(model, nn.Module):
        return tuple(name for name, _ in model.named_children())
    return tuple(model) if isinstance(model, Mapping) else ()


def check_models(model: object) -> None:
    """Check one model, or each of several."""
    if not isinstance(model, Mapping):
        check_model(model)
        return
    require(bool(model), "model", "must name at least one model", model, 'such as {"g": …, "d": …}')
    for name, each in model.items():
        _check_name(name)
        _check_part(name, each)


def _check_name(name: object) -> None:
    from torch import nn

    fits = isinstance(name, str) and name.isidentifier() and not hasattr(nn.ModuleDict(), name)
    remedy = "it becomes a key of an nn.ModuleDict: choose another name, such as g or d"
    require(fits, "model", "must have names that an nn.ModuleDict accepts", name, remedy)


def _check_part(name: str, model: object) -> None:
    from torch import nn

    fits = isinstance(model, nn.Module) or callable(model)
    remedy = "give the module, or a callable without arguments that creates it"
    require(fits, f"model[{name!r}]", "must be an nn.Module or create one", model, remedy)


def build_modules(models: Mapping[str, Any]) -> nn.ModuleDict:
    """Combine several models into one module. Instances are copied together, so shared parameters stay shared."""
    from torch import nn

    copies = copied(
        nn.ModuleDict({name: each for name, each in models.items() if isinstance(each, nn.Module)})
    )
    built = {name: copies[name] if name in copies else each() for name, each in models.items()}
    for name, each in built.items():
        require(isinstance(each, nn.Module), f"model[{name!r}]", "must make an nn.Module", each, "return it")
    return nn.ModuleDict(built)


def copied(module: Module, memo: dict[int, Any] | None = None) -> Module:
    """Return a deep copy. Attributes that the user has set on parameters, such as `no_decay`, are copied too.

    `memo` maps the id of an object to its replacement in the copy.
    """
    memo = {} if memo is None else memo
    made = copy.deepcopy(module, memo)
    for parameter in module.parameters():
        found = memo.get(id(parameter), parameter)
        if found is not parameter:
            vars(found).update(vars(parameter))
    return made


def check_optimizers(optimizer: object, schedule: object, names: Sequence[str]) -> None:
    """Check one optimizer, or one per model. `names` is empty if the names of the models are not known yet."""
    remedy = "give a factory, such as lambda params: torch.optim.SGD(params, lr=0.1)"
    _check_makers("optimizer", optimizer, names, remedy)
    if schedule is not None:
        known = tuple(optimizer) if isinstance(optimizer, Mapping) else ()
        _check_makers(
            "schedule", schedule, known, "give a function that takes an optimizer and returns a scheduler"
        )
        by_name = not isinstance(schedule, Mapping) or isinstance(optimizer, Mapping)
        remedy = "give one schedule, or name the optimizers too"
        require(by_name, "schedule", "must have the names of the optimizers", schedule, remedy)


def _check_makers(argument: str, given: object, names: Sequence[str], remedy: str) -> None:
    if not isinstance(given, Mapping):
        require(callable(given), argument, "must be a callable", given, remedy)
        return
    require(bool(given), argument, "must name at least one", given, "or give one callable for all")
    for name, each in given.items():
        require(callable(each), f"{argument}[{name!r}]", "must be a callable", each, remedy)
        what = "models" if argument == "optimizer" else "optimizers"
        if names and name not in names:
            remedy = f"they are {', '.join(names)}"
            raise ConfigurationError(argument, f"must have names of the {what}", name, remedy)


def check_all_trained(module: nn.Module, optimizers: Mapping[str, Maker]) -> None:
    """Check that every trainable parameter belongs to a model with an optimizer."""
    children = dict(module.named_children())
    for name in optimizers:
        remedy = "give Task(model={…}) with the same names, or one optimizer"
        require(name in children, "optimizer", "must have names of the models", name, remedy)
    trained = {id(parameter) for name in optimizers for parameter in children[name].parameters()}
    left = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in trained]
    bound = "must have one for each trainable model"
    remedy = f"{left[0]} has none: add it, or freeze it with requires_grad_(False)" if left else ""
    require(not left, "optimizer", bound, ", ".join(optimizers), remedy)


# The step


def is_generator(step: object) -> bool:
    """Return whether calling the step returns a generator."""
    while isinstance(step, functools.partial):
        step = step.func
    return inspect.isgeneratorfunction(step) or inspect.isgeneratorfunction(type(step).__call__)


def check_step(step: object, loss: object) -> None:
    if step is None:
        return
    remedy = "def step(model, batch): … return loss"
    require(callable(step), "step", "must be a function of the model and a batch", step, remedy)
    both = "omit loss: the step computes it"
    require(loss is None, "loss", "must not be given together with step", loss, both)
    require(not inspect.iscoroutinefunction(step), "step", "must not be async", step, remedy)
    try:
        inspect.signature(step).bind(None, None)  # type: ignore[arg-type]
    except TypeError:
        found = f"{getattr(step, '__name__', step)}{inspect.signature(step)}"  # type: ignore[arg-type]
        raise ConfigurationError("step", "must take the model and a batch", found, remedy) from None
    except ValueError:
        pass  # a builtin without a signature


def turns_of(step: object, turns: object, optimizer: object) -> tuple[str, ...]:
    """Return the name of the model that each yield updates.

    Empty if the step is not a generator and updates all models.
    """
    if not is_generator(step):
        remedy = 'let the step yield ("d", loss), then ("g", loss)'
        require(not turns, "turns", "must not be given unless the step is a generator", turns, remedy)
        return ()
    bound = "must be named, one for each model, if the step yields"
    remedy = 'write model={"g": …, "d": …}, optimizer={"g": …, "d": …}'
    if not isinstance(optimizer, Mapping):
        raise ConfigurationError("optimizer", bound, optimizer, remedy)
    listed = isinstance(turns, Sequence) and not isinstance(turns, str)
    remedy = 'such as ("d", "g"): the order in which the step yields'
    require(listed, "turns", "must be a sequence of names", turns, remedy)
    order = tuple(turns) or tuple(optimizer)  # type: ignore[arg-type]
    unknown = [name for name in order if name not in optimizer]
    require(not unknown, "turns", "must be names of the optimizers", turns, ", ".join(optimizer))
    missing = [name for name in optimizer if name not in order]
    require(not missing, "turns", f"must give {', '.join(missing)} a turn too", turns, remedy)
    return order


# Intervals


def check_loop_numbers(
    *, accumulate: object, test_batch_size: object, ema: object, schedule_every: object
) -> None:
    _check_count("accumulate", accumulate, "it is the number of micro-batches of a worker's slice")
    _check_count("test_batch_size", test_batch_size, "1024 is the default")
    decays = ema is None or (isinstance(ema, float) and 0 < ema < 1)
    require(decays, "ema", "must be above 0 and below 1", ema, "0.999 is usual; omit it for no average")
    if schedule_every not in _EVERY:
        remedy = "or give a number of updates"
        words = isinstance(schedule_every, str)
        require(not words, "schedule_every", 'must be "step" or "epoch"', schedule_every, remedy)
        _check_count("schedule_every", schedule_every, 'or write "step" or "epoch"')


def check_memory_options(recompute: object, *, compiles: bool) -> None:
    require(isinstance(recompute, bool), "recompute", "must be True or False", recompute, "or omit it")
    remedy = "choose one of the two"
    require(
        not (recompute and compiles), "recompute", "must not be given with compile=True", recompute, remedy
    )


def check_sync_batch_norm(syncs: object, accumulate: int) -> None:
    require(isinstance(syncs, bool), "sync_batch_norm", "must be True or False", syncs, "or omit it")
    bound = (
        "must be 1 with sync_batch_norm: the whole batch has statistics only if it is computed in one pass"
    )
    require(not syncs or accumulate == 1, "accumulate", bound, accumulate, "omit one of the two")


def check_precision(precision: object) -> None:
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", str(precision), PRECISIONS)


def check_dtypes(**given: object) -> None:
    """Raise an error unless each dtype is a floating-point dtype, or None."""
    for argument, dtype in given.items():
        is_float = dtype is None or getattr(dtype, "is_floating_point", False)
        bound = "must be a floating-point dtype of torch"
        require(is_float, argument, bound, dtype, "write torch.float32, or omit it")


def _check_count(argument: str, value: object, remedy: str) -> None:
    counts = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    require(counts, argument, "must be a whole number of at least 1", value, remedy)
