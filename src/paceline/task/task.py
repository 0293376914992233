"""The training task: model, data, loss, optimizer and batch size, with an optional metric and its target.

A task is validated when it is created, and built on every rank that needs it. Factories are called there, each with
the same seed, so all ranks have the same model and the same data. Torch is imported late.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.system.seeding import seeded
from paceline.system.user_code import user_code
from paceline.task.checks import (
    check_better,
    check_data,
    check_loss,
    check_metric,
    check_model,
    check_numbers,
    check_tensor_plan,
    is_factory,
    is_stream,
    require,
    steps_alone,
    waits_for_metric,
)
from paceline.task.data import Repeated, as_tensors, check_batching, check_stream, settled
from paceline.task.loops import (
    build_modules,
    check_all_trained,
    check_dtypes,
    check_loop_numbers,
    check_memory_options,
    check_models,
    check_optimizers,
    check_precision,
    check_step,
    check_sync_batch_norm,
    copied,
    model_names,
    turns_of,
)
from paceline.task.metrics import METRIC_NAMES, Better, Metric, better_of, reaches
from paceline.task.parameters import Parameters

if TYPE_CHECKING:
    from torch import Tensor, dtype, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import DataLoader, Dataset

Data: TypeAlias = "Dataset[Any] | tuple[Tensor, ...] | Iterable[Any]"
Collate: TypeAlias = Callable[[list[Any]], Any]
Model: TypeAlias = "nn.Module | Callable[[], nn.Module]"
MakeOptimizer: TypeAlias = "Callable[[Any], Optimizer]"
MakeSchedule: TypeAlias = "Callable[[Optimizer], LRScheduler]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A training task. In a tuple of tensors the last is the target and the others are the model's inputs.

    If `data` is a DataLoader, its dataset is used. Its batch size, collate function, order, drop_last and number of
    processes are used for the arguments that are not given here.
    """

    model: Model | Mapping[str, Model]
    """A module, or several by name. Several are combined into one nn.ModuleDict."""
    data: Data | Callable[[], Data] | DataLoader[Any] = field(repr=False)
    loss: Callable[[Any, Any], Tensor] | None = None
    """Function of outputs and targets that returns the mean over the samples. None if the model returns its `loss`."""
    step: Callable[[Any, Any], Any] | None = None
    """Function of the model and a batch that replaces the loss. It returns the loss, or a dictionary with `loss` and
    other values for the run's history. A generator yields ("name", loss) for one model after the other. See
    docs/loop.md."""
    turns: Sequence[str] = ()
    """Name of the model that each yield of the step updates. If empty, the models in the order of their optimizers."""
    optimizer: MakeOptimizer | Mapping[str, MakeOptimizer]
    """Function of the trainable parameters, which also have the module's attributes (see `Parameters`). Or one per
    model."""
    batch_size: int = 0
    """Samples of one step, over all workers. May be left out if the data is a DataLoader."""
    collate: Collate | None = None
    """Makes a batch from a list of samples. If None, torch's default collate function is used."""
    sampler: Sequence[float] | Any = field(default=None, repr=False)
    """A weight for each sample, or a WeightedRandomSampler. Samples are drawn with these weights."""
    shuffle: bool | None = None
    """False for the order of the dataset. With True or None the order is different in every epoch."""
    drop_last: bool = False
    """Whether to drop the last batch of an epoch if it is not full."""
    loaders: int | None = None
    """Processes of each worker that fetch samples while it computes. If None, taken from the DataLoader, else 0."""
    prefetch: int | None = None
    """Batches that each loader process prefetches. If None, taken from the DataLoader, else 2."""
    test: Data | Callable[[], Data] | DataLoader[Any] | None = field(default=None, repr=False)
    test_collate: Collate | None = None
    """Collate function for test samples. If None, `collate` is used."""
    test_batch_size: int = 1024
    """Batch size of an evaluation."""
    predict: Callable[[Any, Any], Any] | None = None
    """Function of the model and a batch that returns the outputs for the metric. None to use the model's outputs."""
    metric: str | Metric | Mapping[str, str | Metric] | None = None
    """Metric of the outputs and targets of the test samples: a function, an object with `update` and `compute`, or
    one of accuracy, loss, perplexity, mae, mse and rmse. With several metrics by name, the target applies to the first.
    All are in the history."""
    target: float | None = None
    """Value of the metric to reach."""
    better: str | None = None
    """Which values of the metric are better: "higher" or "lower". If None, see `metrics.better_of`."""
    clip_norm: float | None = None
    """Upper bound of the gradient's global norm. None for no clipping."""
    schedule: MakeSchedule | Mapping[str, MakeSchedule] | None = None
    """Function of an optimizer. ReduceLROnPlateau is stepped with the metric, at every evaluation."""
    schedule_every: str | int = "step"
    """When to step the schedule: each "step" (update), each "epoch", or every n updates."""
    accumulate: int = 1
    """Number of micro-batches in which a worker computes its slice of a batch, to save memory."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights. The average is evaluated and stored in
    `run.ema_state`."""
    compile: bool = False
    """Whether to compile the model with torch.compile, on each rank, before the run begins. Needs a C++ compiler."""
    precision: str = "fp32"
    """Precision of matrix products and convolutions: "fp32", "bf16" or "fp16". With the last two, the parameters, their
    gradients and the optimizer state remain in float32. "fp16" scales the loss. See docs/precision.md."""
    recompute: bool = False
    """Whether to recompute activations in the backward pass, segment by segment (activation checkpointing). This takes
    less memory and more time, and gives the same bits. See docs/memory.md."""
    sync_batch_norm: bool = False
    """Whether BatchNorm uses the statistics of the whole batch, and not those of each worker's slice. Synchronous
    data-parallel strategies then give the weights of `single`. See docs/models.md."""
    master_dtype: dtype | None = None
    """Dtype of a master copy of the parameters, only in simulations without computation. None for no copy."""
    gradient_dtype: dtype | None = None
    """Dtype of gradients and of their sums, only in simulations without computation. None for that of parameters."""
    tensor_plan: Mapping[str, str] | None = None
    """How the strategy `tensor` splits layers, by name or pattern ("blocks.*.up"): column, row, vocabulary or heads.
    If None, the strategy derives the plan from the model."""

    def __post_init__(self) -> None:
        for name, value in settled(self).items():
            object.__setattr__(self, name, value)
        check_models(self.model)
        check_loss(self.loss)
        check_step(self.step, self.loss)
        check_optimizers(self.optimizer, self.schedule, model_names(self.model))
        object.__setattr__(self, "turns", turns_of(self.step, self.turns, self.optimizer))
        fewest = self._fewest
        if not is_factory(self.data):
            check_data("data", self.data, fewest)
        if self.test is not None and not is_factory(self.test):
            check_data("test", self.test, fewest)
        check_numbers(self.batch_size, self.clip_norm, self.target)
        check_batching(self)
        check_loop_numbers(
            accumulate=self.accumulate,
            test_batch_size=self.test_batch_size,
            ema=self.ema,
            schedule_every=self.schedule_every,
        )
        check_memory_options(self.recompute, compiles=self.compile)
        check_dtypes(master_dtype=self.master_dtype, gradient_dtype=self.gradient_dtype)
        check_sync_batch_norm(self.sync_batch_norm, self.accumulate)
        check_precision(self.precision)
        check_metric(self.metric, self.test, self.target, METRIC_NAMES)
        check_better(self.better, self.metric)
        check_tensor_plan(self.tensor_plan)
        asks = self.predict is None or callable(self.predict)
        require(asks, "predict", "must be a function of the model and a batch", self.predict, "or omit it")

    def build_model(self, seed: int) -> nn.Module:
        """Build the model with this seed. Several models become one nn.ModuleDict. Instances are copied."""
        from torch import nn

        with seeded(seed), user_code("the model could not be built"):
            if isinstance(self.model, Mapping):
                model: nn.Module = build_modules(self.model)
            else:
                model = copied(self.model) if isinstance(self.model, nn.Module) else self.model()
        check_model(model, built=True)
        if isinstance(self.optimizer, Mapping):
            check_all_trained(model, self.optimizer)
        return model

    def build_data(self) -> Data:
        """Return the training samples: a tuple of tensors, a map-style dataset, or a stream."""
        data = _build_data("data", self.data, self._fewest)
        if is_stream(data):
            check_stream(self)
        return data

    def build_test(self) -> Data | None:
        """Return the test samples; None if the task has none."""
        return None if self.test is None else _build_data("test", self.test, self._fewest)

    def by_optimizer(self) -> dict[str, Task]:
        """Return one copy of this task per optimizer, with that optimizer and its schedule only.

        A single one has the key "".
        """
        if not isinstance(self.optimizer, Mapping):
            return {"": self}
        return {name: self._with_one_optimizer(name, make) for name, make in self.optimizer.items()}

    def _with_one_optimizer(self, name: str, make: MakeOptimizer) -> Task:
        schedule = self.schedule.get(name) if isinstance(self.schedule, Mapping) else self.schedule
        every = self.schedule_every
        # This number counts the updates of all models, but the copy counts only its own.
        if isinstance(every, int) and self.turns:
            every = max(1, every * self.turns.count(name) // len(self.turns))
        one = copy.copy(self)  # `replace` would validate again, and some arguments need all optimizers
        for attribute, value in (
            ("optimizer", lambda given: make(Parameters(getattr(given, name)))),
            ("schedule", schedule),
            ("schedule_every", every),
        ):
            object.__setattr__(one, attribute, value)
        return one

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """Build the optimizer of this model's trainable parameters."""
        from torch.optim import Optimizer

        assert not isinstance(self.optimizer, Mapping), "see by_optimizer"
        with user_code("the optimizer could not be built"):
            made = self.optimizer(Parameters(model))
        bound = "must create a torch.optim.Optimizer"
        require(isinstance(made, Optimizer), "optimizer", bound, made, "return the optimizer")
        remedy = "its step computes the loss again, which parallel strategies do not support; choose another"
        require(steps_alone(made), "optimizer", "must step without a closure", type(made).__name__, remedy)
        own = {id(parameter) for parameter in model.parameters()}
        foreign = sum(id(one) not in own for group in made.param_groups for one in group["params"])
        remedy = "create it with the given parameters, not with another copy of the model"
        require(not foreign, "optimizer", "must hold this model's parameters", f"{foreign} others", remedy)
        return made

    def build_schedule(self, optimizer: Optimizer) -> LRScheduler | None:
        """Build the learning-rate schedule of this optimizer; None if the task has none."""
        from torch.optim.lr_scheduler import LRScheduler

        if self.schedule is None:
            return None
        assert not isinstance(self.schedule, Mapping), "see by_optimizer"
        with user_code("the schedule could not be built"):
            made = self.schedule(optimizer)
        require(isinstance(made, LRScheduler), "schedule", "must create an LRScheduler", made, "return it")
        if waits_for_metric(made):
            remedy = "it is stepped with the metric: add test=… and metric=…, or choose another"
            require(self.metric is not None, "schedule", "needs a metric", type(made).__name__, remedy)
            return made
        remedy = "its step is called without arguments; choose another schedule"
        require(steps_alone(made), "schedule", "must step without arguments", type(made).__name__, remedy)
        return made

    @property
    def _fewest(self) -> int:
        """Smallest number of tensors in a sample: input and target, or 1 with a user-defined step."""
        return 1 if self.step is not None else 2

    def metrics(self) -> dict[str, str | Metric]:
        """Return the metrics by name. The first one is the main metric. A single one has the name "metric"."""
        if self.metric is None:
            return {}
        return dict(self.metric) if isinstance(self.metric, Mapping) else {"metric": self.metric}

    @property
    def better_way(self) -> Better:
        """Whether "higher" or "lower" values of the main metric are better."""
        name, metric = next(iter(self.metrics().items()), ("", None))
        return better_of(metric, self.better, name)

    def reaches_target(self, metric: float | None) -> bool:
        """Return whether the metric is as good as the target. False if the task has no target."""
        return reaches(metric, self.target, self.better_way)


def _build_data(argument: str, given: Any, fewest: int) -> Data:
    from torch.utils.data import TensorDataset

    if is_factory(given):
        factory = given
        # A constant seed: a task's data is the same on every rank and in every run.
        with seeded(0), user_code(f"the {argument} could not be built"):
            given = factory()
        # An iterator, such as a generator: call the factory for every pass.
        if hasattr(type(given), "__next__"):
            given = Repeated(factory)
        check_data(argument, given, fewest)
    # Tensors use the fast path, even if wrapped in a TensorDataset.
    if type(given) is TensorDataset and len(given.tensors) > 1:
        return given.tensors
    built: Data = as_tensors(given) if isinstance(given, tuple) else given
    return built
