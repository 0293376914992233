"""`pl.prepare` and the functions for scripts with their own training loop."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.clusters.base.declarations import Declarations
from paceline.clusters.launched.launched import Launched
from paceline.clusters.launched.launchers import is_launched
from paceline.context import Strategy
from paceline.costs.stragglers import parse_delays, parse_slow
from paceline.errors import ConfigurationError
from paceline.loop import saving
from paceline.loop.loader import SlicedLoader, check_loader, shard_of
from paceline.loop.optimizer import check_optimizer, prepared
from paceline.loop.session import Loop
from paceline.loop.settings import LoopSettings
from paceline.run_length import ClientRounds
from paceline.runs.run import Run
from paceline.strategies import describe, parse, spell
from paceline.training import roles_of

_loop: Loop | None = None
_prepared: tuple[nn.Module, torch.optim.Optimizer] | None = None


def prepare(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Any = None,
    scheduler: Any = None,
    strategy: str | Strategy | None = None,
    *,
    cluster: Launched | None = None,
) -> tuple[Any, ...]:
    """Make a training loop a worker of a run. Return the arguments that were given, in this order.

    Start the script with `paceline run`, torchrun, mpirun or srun. The model and the optimizer are the same objects;
    the loader gives each worker its slice of every batch. `optimizer.step()` takes one step of the strategy. The
    strategy of the command line has priority over `strategy`; the default is all-reduce. In a server process this
    function runs the server and then exits. A script that was started alone runs unchanged, as one worker. See
    docs/own_loop.md.
    """
    global _loop, _prepared
    if _prepared is not None:
        raise ConfigurationError("pl.prepare", "must be called once", 2, "train one model per script")
    if not isinstance(model, nn.Module):
        raise ConfigurationError("model", "must be a torch.nn.Module", model)
    check_optimizer(model, optimizer)
    if loader is not None:
        check_loader(loader)
    if is_launched(os.environ):
        _loop = _open(model, optimizer, strategy, cluster)
        _loop.start()
        if loader is not None:
            loader = SlicedLoader(loader, _loop)
    _prepared = model, prepared(optimizer, _loop)
    return tuple(each for each in (model, optimizer, loader, scheduler) if each is not None)


def _open(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: str | Strategy | None,
    cluster: Launched | None,
) -> Loop:
    settings = LoopSettings.from_environment()
    spec = settings.strategy or strategy or "all-reduce"
    chosen = parse(spec)
    check_strategy(chosen)
    where = cluster or Launched(
        slow=parse_slow(settings.slow) if settings.slow else {},
        delay=parse_delays(settings.delay),
        deadline_s=settings.deadline_s,
        link=settings.link,
        threads=settings.threads,
    )
    return Loop(
        model,
        optimizer,
        strategy=chosen,
        name=spell(spec) if isinstance(spec, str) else describe(chosen),
        roles=roles_of(chosen, where),
        cluster=where,
        seed=settings.seed,
        out=None if settings.out is None else Path(settings.out),
    )


def check_strategy(strategy: Strategy) -> None:
    """Refuse strategies that a loop of whole models cannot drive."""
    remedy = "describe the training as a pl.Task and use pl.train: see docs/training.md"
    if Declarations.of(strategy).holds_parts:
        bound = "must give each worker the whole model: a loop computes whole gradients"
        raise ConfigurationError("strategy", bound, describe(strategy), remedy)
    if isinstance(strategy, ClientRounds):
        bound = (
            "must leave the steps to the loop: rounds of this one select clients and set the steps of each"
        )
        raise ConfigurationError("strategy", bound, describe(strategy), remedy)


def finish() -> Run | None:
    """End the run on this worker, and wait for the others. Return the run; None if the script was started alone.

    The model then has the run's weights: the server's, or the mean if each worker has its own. If a script does not
    call this function, it is called at the exit of the script.
    """
    return None if _loop is None else _loop.finish()


def rank() -> int:
    """Return the number of this worker, from 0. 0 if the script was started alone."""
    return 0 if _loop is None else _loop.rank


def workers() -> int:
    """Return the number of workers. 1 if the script was started alone."""
    return 1 if _loop is None else _loop.workers


def is_main() -> bool:
    """Return whether this is the first worker, which prints, evaluates and saves."""
    return rank() == 0


def print(*values: Any, **options: Any) -> None:
    """Print on the first worker only. Arguments as of Python's print."""
    if is_main():
        builtins.print(*values, **options)


def log(**values: Tensor | float) -> None:
    """Record values of the current step in the run's history: `loss`, and others. Call it before
    `optimizer.step()`."""
    if _loop is not None:
        plain = {name: each.detach() if isinstance(each, Tensor) else each for name, each in values.items()}
        _loop.logged.update({name: float(each) for name, each in plain.items()})


def shard(*tensors: Tensor) -> Any:
    """Return this worker's slice of a batch, for loops without a loader. Every worker passes the same batch.

    A slice is along the first dimension. An empty slice is one sample of weight 0.
    """
    found = list(tensors) if _loop is None else shard_of(_loop, tensors)
    return found[0] if len(found) == 1 else tuple(found)


def gather(value: Tensor | float) -> list[Any]:
    """Return the values of all workers, in the order of ranks, on every worker. Each worker must call it."""
    if _loop is None:
        return [value]
    tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    found = _loop.gather(tensor)
    return found if isinstance(value, Tensor) else [each.item() for each in found]


def save(folder: str | os.PathLike[str], **values: Any) -> None:
    """Save model, optimizer and order of the data in a folder. Every worker must call it, between two steps.

    `values` are saved too. They must be JSON values, such as the epoch and `scheduler.state_dict()`. Strategies
    with servers are refused. Save between epochs: the position within an epoch is not saved.
    """
    model, optimizer = _check_prepared("pl.save")
    if _loop is None:
        saving.save_alone(model, optimizer, Path(folder), values)
    else:
        saving.save(_loop, Path(folder), values)


def resume(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Resume from the newest checkpoint of `pl.save` in a folder. Return its values; {} if there is none.

    Call it after `pl.prepare` and before the first step, with the same strategy and number of workers.
    """
    model, optimizer = _check_prepared("pl.resume")
    if _loop is None:
        return saving.resume_alone(model, optimizer, Path(folder))
    return saving.resume(_loop, Path(folder))


def _check_prepared(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    if _prepared is None:
        raise ConfigurationError(name, "must be called after pl.prepare", "no prepared model")
    return _prepared
