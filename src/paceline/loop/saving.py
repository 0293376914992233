"""Checkpoints of a user's loop: every worker saves its own state, and resumes from it.

A checkpoint is a folder with one safetensors file for each worker. The first worker writes a JSON file last: without
it, the checkpoint is incomplete and is not used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import ConfigurationError
from paceline.files.tensor_files import read_tensors, write_tensors
from paceline.files.writing import replacing, write_file
from paceline.loop.session import Loop
from paceline.model.optimizer.saved_state import SavedOptimizerState, keep_module, keep_updates, load_module

_COMPLETE = "checkpoint.json"
_FACTS = "facts"
_ORDER = "order"
_CHANCE = "chance"
_STATE = "state/"


def save(loop: Loop, folder: Path, values: Mapping[str, Any]) -> None:
    """Save the state of all workers. Each worker must call it, between two steps."""
    _refuse_servers(loop)
    place = folder / f"checkpoint-{len(_found(folder)):05}"
    # All workers have read the number before one of them writes.
    loop.gather(torch.zeros(1))
    place.mkdir(parents=True, exist_ok=True)
    learner = loop.learner
    remembered, optimizer = keep_updates(learner.replica.updates, learner.replica.layout, with_unused=True)
    tensors = keep_module(loop.module) | remembered
    tensors |= {_ORDER: loop.order_state, _CHANCE: torch.get_rng_state()}
    tensors |= {_STATE + name: tensor for name, tensor in learner.states.items()}
    with replacing(place / _file(loop.rank)) as out:
        write_tensors(out, tensors, {_FACTS: json.dumps({"optimizer": optimizer, "steps": loop.steps})})
    loop.gather(torch.zeros(1))  # all workers have written
    if loop.rank == 0:
        write_file(place / _COMPLETE, json.dumps(_facts(loop) | {"values": dict(values)}).encode())


def resume(loop: Loop, folder: Path) -> dict[str, Any]:
    """Load the newest complete checkpoint. Return the values that were saved with it; {} if there is none."""
    _refuse_servers(loop)
    if loop.has_begun:
        raise ConfigurationError("pl.resume", "must be called before the first step", loop.steps)
    places = _found(folder)
    # All workers have read the folder before one of them saves.
    loop.gather(torch.zeros(1))
    if not places:
        return {}
    facts = json.loads((places[-1] / _COMPLETE).read_text())
    for name, value in _facts(loop).items():
        if facts[name] != value:
            remedy = "resume with the same ones"
            raise ConfigurationError(name, f"must be {facts[name]!r}, as in {places[-1]}", value, remedy)
    tensors, own = _read(places[-1] / _file(loop.rank))
    _load(loop, tensors, own["optimizer"])
    loop.resume_at(own["steps"])
    values: dict[str, Any] = facts["values"]
    return values


def _load(loop: Loop, tensors: dict[str, Tensor], optimizer: Any) -> None:
    replica = loop.learner.replica
    load_module(loop.module, tensors, tensors)
    replica.updates.kept = SavedOptimizerState(replica.layout, [(tensors, optimizer)])
    loop.order_state.copy_(tensors[_ORDER])
    if _CHANCE in tensors:  # not in checkpoints of older versions
        torch.set_rng_state(tensors[_CHANCE])
    for name, tensor in tensors.items():
        if name.startswith(_STATE):
            loop.learner.states[name.removeprefix(_STATE)] = tensor


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file, copied from it, and its facts."""
    with path.open("rb") as file:
        found = read_tensors(file)
        tensors = {name: tensor.clone() for name, tensor in found.tensors.items()}
        facts: dict[str, Any] = json.loads(found.notes[_FACTS])
    return tensors, facts


def _facts(loop: Loop) -> dict[str, Any]:
    return {"strategy": loop.job.name, "workers": loop.workers}


def _found(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    return sorted(path.parent for path in folder.glob(f"checkpoint-*/{_COMPLETE}"))


def _file(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def _refuse_servers(loop: Loop) -> None:
    if any(role != "worker" for role in loop.job.roles):
        bound = "must have no servers: their optimizer state is not in reach of a loop"
        remedy = "choose all-reduce or another strategy without servers, or use pl.train(checkpoint=…)"
        raise ConfigurationError("strategy", bound, loop.job.name, remedy)


def save_alone(module: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, values: Any) -> None:
    """Save the state of a script that was started alone."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"alone-{len(list(folder.glob('alone-*'))):05}.safetensors"
    with replacing(place) as out:
        facts = {"values": dict(values), "groups": _groups(optimizer)}
        write_tensors(out, keep_module(module) | _state(optimizer), {_FACTS: json.dumps(facts)})


def resume_alone(module: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> dict[str, Any]:
    """Load what `save_alone` has saved last. Return the values; {} if nothing was saved."""
    places = sorted(folder.glob("alone-*"))
    if not places:
        return {}
    tensors, facts = _read(places[-1])
    load_module(module, tensors, tensors)
    torch.set_rng_state(tensors[_ORDER])
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "alone":
            number, _, key = rest.partition("/")
            state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": facts["groups"]})
    values: dict[str, Any] = facts["values"]
    return values


def _groups(optimizer: torch.optim.Optimizer) -> Any:
    return optimizer.state_dict()["param_groups"]


def _state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    found = {
        f"alone/{number}/{key}": value
        for number, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }
    return found | {_ORDER: torch.get_rng_state()}
