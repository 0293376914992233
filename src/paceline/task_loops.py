"""What a task says of its loop: one model or several, a step of the user's own, whose turn it is, how often.

A task with a generator as its step trains several models in turn. Each yield is one update of one model: the run's
step number s is the turn `turns[s % len(turns)]`, on every rank and in every world.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.errors import ConfigurationError
from paceline.task_checks import check_model, require

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "build_modules",
    "check_all_trained",
    "check_loop_numbers",
    "check_models",
    "check_optimizers",
    "check_recompute",
    "check_step",
    "model_names",
    "turns_of",
]

Maker: TypeAlias = "Callable[[Any], Any]"

_EVERY = ("step", "epoch")


# Several models


def model_names(model: object) -> tuple[str, ...]:
    """The names that optimizers may have: of several models, or of one module's children. Of a factory: none yet."""
    from torch import nn

    if isinstance(model, nn.Module):
        return tuple(name for name, _ in model.named_children())
    return tuple(model) if isinstance(model, Mapping) else ()


def check_models(model: object) -> None:
    """Of one model, or of each of several."""
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
    remedy = "it becomes a name of an nn.ModuleDict: choose another, such as g or d"
    require(fits, "model", "must have names that are free in an nn.ModuleDict", name, remedy)


def _check_part(name: str, model: object) -> None:
    from torch import nn

    fits = isinstance(model, nn.Module) or callable(model)
    remedy = "give the module, or a callable without arguments that makes it"
    require(fits, f"model[{name!r}]", "must be an nn.Module or make one", model, remedy)


def build_modules(models: Mapping[str, Any]) -> nn.ModuleDict:
    """Several models as one module. Instances are copied together, so that what they share stays shared."""
    from torch import nn

    copies = copy.deepcopy({name: each for name, each in models.items() if isinstance(each, nn.Module)})
    built = {name: copies[name] if name in copies else each() for name, each in models.items()}
    for name, each in built.items():
        require(isinstance(each, nn.Module), f"model[{name!r}]", "must make an nn.Module", each, "return it")
    return nn.ModuleDict(built)


def check_optimizers(optimizer: object, schedule: object, names: Sequence[str]) -> None:
    """Of one optimizer, or of one for each of several models, whose names may not be known yet."""
    remedy = "give what makes one, such as lambda params: torch.optim.SGD(params, lr=0.1)"
    _check_makers("optimizer", optimizer, names, remedy)
    if schedule is not None:
        known = tuple(optimizer) if isinstance(optimizer, Mapping) else ()
        _check_makers("schedule", schedule, known, "give what makes a scheduler of an optimizer")
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
    """Every parameter that can learn is of a model that has an optimizer."""
    children = dict(module.named_children())
    for name in optimizers:
        remedy = "give Task(model={…}) with the same names, or one optimizer"
        require(name in children, "optimizer", "must have names of the models", name, remedy)
    trained = {id(parameter) for name in optimizers for parameter in children[name].parameters()}
    left = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in trained]
    bound = "must have one for each model that can learn"
    remedy = f"{left[0]} has none: add it, or freeze it by requires_grad_(False)" if left else ""
    require(not left, "optimizer", bound, ", ".join(optimizers), remedy)


# The step


def is_generator(step: object) -> bool:
    """Whether calling it gives a generator."""
    while isinstance(step, functools.partial):
        step = step.func
    return inspect.isgeneratorfunction(step) or inspect.isgeneratorfunction(type(step).__call__)


def check_step(step: object, loss: object) -> None:
    if step is None:
        return
    remedy = "def step(model, batch): … return loss"
    require(callable(step), "step", "must be a function of the model and a batch", step, remedy)
    both = "leave loss out: the step computes it"
    require(loss is None, "loss", "must not be given together with step", loss, both)
    require(not inspect.iscoroutinefunction(step), "step", "must not be async", step, remedy)
    try:
        inspect.signature(step).bind(None, None)  # type: ignore[arg-type]
    except TypeError:
        found = f"{getattr(step, '__name__', step)}{inspect.signature(step)}"  # type: ignore[arg-type]
        raise ConfigurationError("step", "must take the model and a batch", found, remedy) from None
    except ValueError:
        pass  # a builtin that does not say


def turns_of(step: object, turns: object, optimizer: object) -> tuple[str, ...]:
    """Whose turn each yield of the step is. Empty: the step returns its loss, and every update is of all models."""
    if not is_generator(step):
        remedy = 'let the step yield ("d", loss), then ("g", loss)'
        require(not turns, "turns", "must not be given unless the step is a generator", turns, remedy)
        return ()
    bound = "must be named, one for each model, where the step yields"
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


# How often


def check_loop_numbers(
    *, accumulate: object, test_batch_size: object, ema: object, schedule_every: object
) -> None:
    _check_count("accumulate", accumulate, "it counts the parts that a worker's slice is computed in")
    _check_count("test_batch_size", test_batch_size, "1024 is the default")
    decays = ema is None or (isinstance(ema, float) and 0 < ema < 1)
    require(decays, "ema", "must be above 0 and below 1", ema, "0.999 is usual; leave it out for none")
    if schedule_every not in _EVERY:
        remedy = "or give a number of updates"
        words = isinstance(schedule_every, str)
        require(not words, "schedule_every", 'must be "step" or "epoch"', schedule_every, remedy)
        _check_count("schedule_every", schedule_every, 'or write "step" or "epoch"')


def check_recompute(recompute: object, *, compiles: bool) -> None:
    require(isinstance(recompute, bool), "recompute", "must be True or False", recompute, "leave it out")
    remedy = "choose one of the two"
    require(
        not (recompute and compiles), "recompute", "must not be given with compile=True", recompute, remedy
    )


def _check_count(argument: str, value: object, remedy: str) -> None:
    counts = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    require(counts, argument, "must be a whole number of at least 1", value, remedy)
