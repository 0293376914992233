"""What is learned: model, data, loss, optimizer, batch size; and how well, by a metric and its target.

A task is checked when it is made, and built on every rank that needs it: factories are called there, each
under the same seed, so that all ranks hold the same model and the same data. Torch is imported late.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.chance import seeded
from paceline.task_checks import (
    check_data,
    check_loss,
    check_metric,
    check_model,
    check_numbers,
    is_factory,
    is_stream,
    require,
    steps_alone,
)
from paceline.task_data import Repeated, as_tensors, check_batching, check_stream, settled
from paceline.user_code import user_code

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import DataLoader, Dataset

__all__ = ["Parameters", "Task", "accuracy"]

Data: TypeAlias = "Dataset[Any] | tuple[Tensor, ...] | Iterable[Any]"
Collate: TypeAlias = Callable[[list[Any]], Any]
Metric: TypeAlias = "Callable[[Tensor, Tensor], float]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What is learned. In a tuple of tensors the last is the target and the others are the model's inputs.

    Of a DataLoader the dataset is taken, and what is not given here: batch size, collate function, order, drop_last
    and the number of its processes.
    """

    model: nn.Module | Callable[[], nn.Module]
    data: Data | Callable[[], Data] | DataLoader[Any] = field(repr=False)
    loss: Callable[[Any, Any], Tensor] | None = None
    """Of outputs and targets: the mean over their samples. None: the model returns its own, as `loss`."""
    optimizer: Callable[[Any], Optimizer]
    """Given the trainable parameters, which also answer as the module does: see `Parameters`."""
    batch_size: int = 0
    """Samples of one step, over all workers. It may be left out where the data is a DataLoader."""
    collate: Collate | None = None
    """Makes one batch of a list of samples. None: as a DataLoader does."""
    sampler: Sequence[float] | Any = field(default=None, repr=False)
    """A weight for each sample, or a WeightedRandomSampler: each sample of a batch is drawn by these."""
    shuffle: bool | None = None
    """False: in the dataset's own order. True or None: in another order every epoch."""
    drop_last: bool = False
    """Whether the last samples of an epoch that do not fill a batch are left out."""
    loaders: int | None = None
    """Processes of each worker that fetch samples while it computes. None: as the DataLoader has them, or none."""
    prefetch: int | None = None
    """Batches that each loader keeps ready. None: as the DataLoader has it, or 2."""
    test: Data | Callable[[], Data] | DataLoader[Any] | None = field(default=None, repr=False)
    test_collate: Collate | None = None
    """The same for test samples. None: as `collate`."""
    metric: str | Metric | None = None
    """Of the outputs and targets of all test samples; higher is better."""
    target: float | None = None
    """The metric's value that counts as reached."""
    clip_norm: float | None = None
    """The bound on the gradient's global norm."""
    schedule: Callable[[Optimizer], LRScheduler] | None = None
    """Stepped once an update."""

    def __post_init__(self) -> None:
        for name, value in settled(self).items():
            object.__setattr__(self, name, value)
        check_model(self.model)
        check_loss(self.loss)
        remedy = "give what makes one, such as lambda params: torch.optim.SGD(params, lr=0.1)"
        require(callable(self.optimizer), "optimizer", "must be a callable", self.optimizer, remedy)
        schedules = self.schedule is None or callable(self.schedule)
        require(schedules, "schedule", "must be a callable", self.schedule, "give what makes a scheduler")
        if not is_factory(self.data):
            check_data("data", self.data)
        if self.test is not None and not is_factory(self.test):
            check_data("test", self.test)
        check_numbers(self.batch_size, self.clip_norm, self.target)
        check_batching(self)
        check_metric(self.metric, self.test, self.target, _METRICS)

    def build_model(self, seed: int) -> nn.Module:
        """The model as this seed initialises it. A model given as an instance is copied, never touched."""
        from torch import nn

        with seeded(seed), user_code("the model could not be built"):
            model = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        check_model(model, built=True)
        return model

    def build_data(self) -> Data:
        """The training samples: a tuple of tensors, a map-style dataset, or a stream."""
        data = _build_data("data", self.data)
        if is_stream(data):
            check_stream(self)
        return data

    def build_test(self) -> Data | None:
        """The test samples, or None where the task has none."""
        return None if self.test is None else _build_data("test", self.test)

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of this model's trainable parameters."""
        from torch.optim import Optimizer

        with user_code("the optimizer could not be built"):
            made = self.optimizer(Parameters(model))
        bound = "must make a torch.optim.Optimizer"
        require(isinstance(made, Optimizer), "optimizer", bound, made, "return the optimizer")
        remedy = "its step computes the loss again, which no parallel strategy can do; choose another"
        require(steps_alone(made), "optimizer", "must step without a closure", type(made).__name__, remedy)
        own = {id(parameter) for parameter in model.parameters()}
        foreign = sum(id(one) not in own for group in made.param_groups for one in group["params"])
        remedy = "make it of the parameters that it is given, not of another copy of the model"
        require(not foreign, "optimizer", "must hold this model's parameters", f"{foreign} others", remedy)
        return made

    def build_schedule(self, optimizer: Optimizer) -> LRScheduler | None:
        """The learning-rate schedule of this optimizer, or None where the task has none."""
        from torch.optim.lr_scheduler import LRScheduler

        if self.schedule is None:
            return None
        with user_code("the schedule could not be built"):
            made = self.schedule(optimizer)
        require(isinstance(made, LRScheduler), "schedule", "must make an LRScheduler", made, "return it")
        remedy = "it is stepped once an update, with no argument; choose another"
        require(steps_alone(made), "schedule", "must step without a metric", type(made).__name__, remedy)
        return made

    def metric_function(self) -> Metric | None:
        """The metric as a callable of outputs and targets, or None where the task has none."""
        return _METRICS[self.metric] if isinstance(self.metric, str) else self.metric


class Parameters(list[Any]):
    """A module's trainable parameters, as a list that answers to the module's own attributes too.

    So one argument serves `lambda params: SGD(params, lr=1)` and `lambda m: SGD(m.head.parameters(), lr=1)`.
    """

    __slots__ = ("_module",)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(parameter for parameter in module.parameters() if parameter.requires_grad)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        # What Python asks of any object (how to copy it, say) is a question to the list.
        if name == "_module" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._module, name)


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of samples whose largest output is the one that the target names."""
    # Otherwise (n, 1) targets would broadcast to n² comparisons, and a single output would always be right.
    fits = outputs.ndim > 0 and outputs.shape[-1] > 1 and outputs.shape[:-1] == targets.shape
    bound = "needs outputs of shape (…, classes), with 2 classes or more, and targets of shape (…)"
    shapes = f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
    require(fits, "metric 'accuracy'", bound, shapes, "give a metric of your own")
    return float((outputs.argmax(-1) == targets).double().mean())


_METRICS: Mapping[str, Metric] = {"accuracy": accuracy}


def _build_data(argument: str, given: Any) -> Data:
    from torch.utils.data import TensorDataset

    if is_factory(given):
        factory = given
        # A constant seed: the data of a task is the same on every rank and in every run.
        with seeded(0), user_code(f"the {argument} could not be built"):
            given = factory()
        if hasattr(type(given), "__next__"):  # such as a generator: it is begun anew for every pass
            given = Repeated(factory)
        check_data(argument, given)
    # Tensors take the fast path, whichever way they were wrapped.
    if type(given) is TensorDataset and len(given.tensors) > 1:
        return given.tensors
    built: Data = as_tensors(given) if isinstance(given, tuple) else given
    return built
