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
from paceline.metrics import METRIC_NAMES, Better, Metric, better_of, reaches
from paceline.task_checks import (
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
from paceline.task_data import Repeated, as_tensors, check_batching, check_stream, settled
from paceline.task_loops import (
    build_modules,
    check_all_trained,
    check_loop_numbers,
    check_models,
    check_optimizers,
    check_recompute,
    check_step,
    model_names,
    turns_of,
)
from paceline.user_code import user_code

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import DataLoader, Dataset

__all__ = ["Parameters", "Task"]

Data: TypeAlias = "Dataset[Any] | tuple[Tensor, ...] | Iterable[Any]"
Collate: TypeAlias = Callable[[list[Any]], Any]
Model: TypeAlias = "nn.Module | Callable[[], nn.Module]"
MakeOptimizer: TypeAlias = "Callable[[Any], Optimizer]"
MakeSchedule: TypeAlias = "Callable[[Optimizer], LRScheduler]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What is learned. In a tuple of tensors the last is the target and the others are the model's inputs.

    Of a DataLoader the dataset is taken, and what is not given here: batch size, collate function, order, drop_last
    and the number of its processes.
    """

    model: Model | Mapping[str, Model]
    """Or several, by name: they become one nn.ModuleDict."""
    data: Data | Callable[[], Data] | DataLoader[Any] = field(repr=False)
    loss: Callable[[Any, Any], Tensor] | None = None
    """Of outputs and targets: the mean over their samples. None: the model returns its own, as `loss`."""
    step: Callable[[Any, Any], Any] | None = None
    """In place of a loss: of the model and a batch. It returns the loss, or a dictionary with `loss` and what else the
    run's history shall have; or it yields ("name", loss) for one model after the other. See docs/loop.md."""
    turns: Sequence[str] = ()
    """Whose update each yield of the step is. Empty: the models in the order of their optimizers."""
    optimizer: MakeOptimizer | Mapping[str, MakeOptimizer]
    """Given the trainable parameters, which also answer as the module does: see `Parameters`. Or one for each model."""
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
    test_batch_size: int = 1024
    """Samples that pass the model at a time when it is evaluated."""
    predict: Callable[[Any, Any], Any] | None = None
    """The outputs that the metric is given, of the model and a batch. None: what the model returns."""
    metric: str | Metric | Mapping[str, str | Metric] | None = None
    """Of the outputs and targets of the test samples: a function, an object with `update` and `compute`, or accuracy,
    loss, perplexity, mae, mse or rmse. Of several, by name, the first counts for the target; the others are in the
    history too."""
    target: float | None = None
    """The metric's value that counts as reached."""
    better: str | None = None
    """Which way the metric is better: "higher" or "lower". None: as its name says; see `metrics.better_of`."""
    clip_norm: float | None = None
    """The bound on the gradient's global norm."""
    schedule: MakeSchedule | Mapping[str, MakeSchedule] | None = None
    """Of an optimizer. ReduceLROnPlateau is stepped with the metric, at every evaluation."""
    schedule_every: str | int = "step"
    """When a schedule is stepped: each "step" (update), each "epoch", or after so many updates."""
    accumulate: int = 1
    """A worker computes its slice of a batch in so many parts, one after the other, to save memory."""
    ema: float | None = None
    """The decay of an exponential moving average of the weights. It is what is evaluated, and `run.ema_state`."""
    compile: bool = False
    """Whether torch.compile compiles the model: on each rank, before the run begins. It needs a C++ compiler."""
    recompute: bool = False
    """Whether backward computes the forward pass again, piece by piece, so that its values need not be kept: less
    memory for more time, and the same bits. See docs/memory.md."""
    tensor_plan: Mapping[str, str] | None = None
    """How the strategy `tensor` splits layers: by name or pattern ("blocks.*.up") column, row, vocabulary or heads.
    None: it finds that by itself."""

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
        check_recompute(self.recompute, compiles=self.compile)
        check_metric(self.metric, self.test, self.target, METRIC_NAMES)
        check_better(self.better, self.metric)
        check_tensor_plan(self.tensor_plan)
        asks = self.predict is None or callable(self.predict)
        require(asks, "predict", "must be a function of the model and a batch", self.predict, "leave it out")

    def build_model(self, seed: int) -> nn.Module:
        """The model as this seed initialises it; of several, one nn.ModuleDict. Instances are copied, never touched."""
        from torch import nn

        with seeded(seed), user_code("the model could not be built"):
            if isinstance(self.model, Mapping):
                model: nn.Module = build_modules(self.model)
            else:
                model = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        check_model(model, built=True)
        if isinstance(self.optimizer, Mapping):
            check_all_trained(model, self.optimizer)
        return model

    def build_data(self) -> Data:
        """The training samples: a tuple of tensors, a map-style dataset, or a stream."""
        data = _build_data("data", self.data, self._fewest)
        if is_stream(data):
            check_stream(self)
        return data

    def build_test(self) -> Data | None:
        """The test samples, or None where the task has none."""
        return None if self.test is None else _build_data("test", self.test, self._fewest)

    def by_optimizer(self) -> dict[str, Task]:
        """This task once for each of its optimizers, with that one and its schedule alone. Of one, its name is ""."""
        if not isinstance(self.optimizer, Mapping):
            return {"": self}
        return {name: self._with_one_optimizer(name, make) for name, make in self.optimizer.items()}

    def _with_one_optimizer(self, name: str, make: MakeOptimizer) -> Task:
        schedule = self.schedule.get(name) if isinstance(self.schedule, Mapping) else self.schedule
        every = self.schedule_every
        if isinstance(every, int) and self.turns:  # of all models' updates; here only its own are counted
            every = max(1, every * self.turns.count(name) // len(self.turns))
        one = copy.copy(self)  # not by `replace`: all of it was checked, and not all of it fits one optimizer
        for attribute, value in (
            ("optimizer", lambda given: make(Parameters(getattr(given, name)))),
            ("schedule", schedule),
            ("schedule_every", every),
        ):
            object.__setattr__(one, attribute, value)
        return one

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of this model's trainable parameters."""
        from torch.optim import Optimizer

        assert not isinstance(self.optimizer, Mapping), "see by_optimizer"
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
        assert not isinstance(self.schedule, Mapping), "see by_optimizer"
        with user_code("the schedule could not be built"):
            made = self.schedule(optimizer)
        require(isinstance(made, LRScheduler), "schedule", "must make an LRScheduler", made, "return it")
        if waits_for_metric(made):
            remedy = "it is stepped with the metric: add test=… and metric=…, or choose another"
            require(self.metric is not None, "schedule", "needs a metric", type(made).__name__, remedy)
            return made
        remedy = "it is stepped with no argument; choose another"
        require(steps_alone(made), "schedule", "must step by itself", type(made).__name__, remedy)
        return made

    @property
    def _fewest(self) -> int:
        """Tensors of a sample: inputs and a target, or whatever a step of the user's own takes."""
        return 1 if self.step is not None else 2

    def metrics(self) -> dict[str, str | Metric]:
        """The metrics by name; the first is the one that counts. Of one, its name is "metric"."""
        if self.metric is None:
            return {}
        return dict(self.metric) if isinstance(self.metric, Mapping) else {"metric": self.metric}

    @property
    def better_way(self) -> Better:
        """Which way the metric is better that counts: "higher" or "lower"."""
        name, metric = next(iter(self.metrics().items()), ("", None))
        return better_of(metric, self.better, name)

    def reaches_target(self, metric: float | None) -> bool:
        """Whether the metric is as good as the target, the way in which it is better. Not where there is no target."""
        return reaches(metric, self.target, self.better_way)


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


def _build_data(argument: str, given: Any, fewest: int) -> Data:
    from torch.utils.data import TensorDataset

    if is_factory(given):
        factory = given
        # A constant seed: the data of a task is the same on every rank and in every run.
        with seeded(0), user_code(f"the {argument} could not be built"):
            given = factory()
        if hasattr(type(given), "__next__"):  # such as a generator: it is begun anew for every pass
            given = Repeated(factory)
        check_data(argument, given, fewest)
    # Tensors take the fast path, whichever way they were wrapped.
    if type(given) is TensorDataset and len(given.tensors) > 1:
        return given.tensors
    built: Data = as_tensors(given) if isinstance(given, tuple) else given
    return built
