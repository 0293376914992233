"""The user's optimizer: the same object, but its step is a step of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from paceline.loop.session import Loop

_log = logging.getLogger("paceline")


class PreparedOptimizer(torch.optim.Optimizer):
    """Mixin of a prepared optimizer. Without a run, the optimizer steps as before."""

    _loop: Loop | None
    _has_warned = False

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take one step of the run with the gradients of the parameters.

        The parameters are then those of the strategy for the next gradient. The contribution of a worker to an
        update depends on the strategy: see docs/own_loop.md.
        """
        if closure is not None:
            remedy = "compute the gradients, then call optimizer.step()"
            raise ConfigurationError("closure", "must not be given", closure, remedy)
        self._opt_called = True  # read by torch's learning-rate schedules
        if self._loop is None:
            super().step()
            return
        if len(self.param_groups) != self._loop.options.groups:
            bound = f"must be the {self._loop.options.groups} of pl.prepare"
            remedy = "add parameter groups before pl.prepare"
            raise ConfigurationError("parameter groups", bound, len(self.param_groups), remedy)
        self._loop.deliver(self._loop.options.read(self.param_groups))

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # a schedule need not wrap it

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load learning rates and other settings. The state is on the ranks that apply updates."""
        if self._loop is not None and state_dict.get("state"):
            bound = (
                "must be called before pl.prepare: afterwards the state is on the ranks that apply updates"
            )
            remedy = "load it before pl.prepare; or use pl.save and pl.resume"
            raise ConfigurationError("optimizer.load_state_dict", bound, "a state", remedy)
        super().load_state_dict(state_dict)

    def state_dict(self) -> dict[str, Any]:
        """Return the learning rates and other settings. The state is on the ranks that apply updates."""
        if self._loop is not None and self._loop.rank == 0 and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "optimizer.state_dict() has learning rates only, without momentum and the like: save the run with "
                "pl.save"
            )
        return super().state_dict()

    def clip_grad_norm_(self, max_norm: float) -> None:
        """Clip the reduced gradient of this step by its global norm. Call it before `step`."""
        if not max_norm > 0:
            raise ConfigurationError("max_norm", "must be above 0", max_norm)
        if self._loop is None:
            mine = [parameter for group in self.param_groups for parameter in group["params"]]
            nn.utils.clip_grad_norm_(mine, max_norm)
        else:
            self._loop.clip_norm = max_norm


def prepared(optimizer: torch.optim.Optimizer, loop: Loop | None) -> torch.optim.Optimizer:
    """Return the same optimizer as a prepared one. Schedules that refer to it stay valid."""
    kind = type(optimizer)
    # Remove the wrapper of a schedule, which calls the step of the old class.
    vars(optimizer).pop("step", None)
    optimizer.__class__ = type(kind.__name__, (PreparedOptimizer, kind), {})
    optimizer._loop = loop  # type: ignore[attr-defined]
    return optimizer


def check_optimizer(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that a run cannot use."""
    if isinstance(optimizer, PreparedOptimizer):
        raise ConfigurationError("optimizer", "must be prepared once", type(optimizer).__name__)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigurationError("optimizer", "must be a torch.optim.Optimizer", optimizer)
    own = {id(parameter) for parameter in module.parameters()}
    foreign = sum(id(p) not in own for group in optimizer.param_groups for p in group["params"])
    if foreign:
        remedy = "create it with model.parameters()"
        raise ConfigurationError(
            "optimizer", "must hold this model's parameters", f"{foreign} others", remedy
        )
