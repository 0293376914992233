"""The engine of a model whose gradients the user's loop computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property

import torch
from torch import nn

from paceline.context import Batch
from paceline.data.samples import Source
from paceline.loop.facts import OptionNames, StepFacts
from paceline.model.engines.flat_store import FlatStore
from paceline.model.engines.settings import Settings
from paceline.model.engines.torch_engine import TorchEngine
from paceline.model.holding import Holding
from paceline.model.optimizer.flat import clip
from paceline.model.replica import Replica


class LoopEngine(TorchEngine):
    """An engine that takes gradients from the parameters. The module is the user's own, or a copy on a server."""

    @cached_property
    def trained(self) -> list[nn.Parameter]:
        """The trained parameters, in the order of the flat gradient."""
        named = dict(self.module.named_parameters())
        return [named[name] for name in self.holding.layout.names]

    @cached_property
    def flat(self) -> FlatStore:
        return FlatStore(self.module, self.holding, self.device, self.account, has_hooks=False)

    def compute(
        self,
        batch: Batch,
        samples: Source,
        on_bucket: Callable[[int], None],
        checkpoint: Callable[[], None] | None,
        *,
        weight: float,
        accumulate: bool,
    ) -> float:
        """Write the gradients of the parameters into the flat gradient, times `weight`. Return 0."""
        self.computed = batch
        gradient = self.flat.flat_gradient
        before = gradient.flat.clone() if accumulate else None
        gradient.clear()
        for number, parameter in enumerate(self.trained):
            if parameter.grad is not None and batch.count:
                gradient.add(number, parameter.grad * weight if weight != 1.0 else parameter.grad)
        gradient.check()
        if before is not None:
            gradient.flat.add_(before)
        return 0.0

    def refresh(self) -> None:
        """Update the module's copies of parameters before the user's code reads them."""
        self.flat.refresh()

    def set_options(self, names: OptionNames, facts: StepFacts, shard: slice | None) -> None:
        """Use the settings of the user's optimizer for the next update."""
        for each in self.optimization.updates.of(shard).by_name.values():
            names.write(each.optimizer.param_groups, facts.options)

    def clip(self, bound: float, shard: slice | None, norm: float | None) -> None:
        """Scale the reduced gradient down to a maximum norm."""
        part = self.flat.gradient if shard is None else self.flat.gradient[shard]
        clip([part], bound, norm)


def replica_of(settings: Settings, module: nn.Module) -> Replica:
    """Return a replica that uses the user's module."""
    engine = LoopEngine(settings, module, Holding.of(module))
    return Replica(engine.holding, engine)


def optimizer_factory(
    module: nn.Module, template: torch.optim.Optimizer
) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Return a function that makes copies of an optimizer for a module with the same parameter names."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}

    def make(target: nn.Module) -> torch.optim.Optimizer:
        own = dict(target.named_parameters())
        return copy.deepcopy(template, {key: own[name] for key, name in names.items()})

    return make
