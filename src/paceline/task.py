"""What is learned: model, data, loss, optimizer, batch size; and how well, by a metric and its target.

A task is checked when it is made, and built on every rank that needs it: factories are called there, each
under the same seed, so that all ranks hold the same model and the same data. Torch is imported late.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import inspect
import math
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.errors import ConfigurationError, PacelineError, TaskError, UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import Dataset

__all__ = ["Parameters", "Task", "accuracy", "load_task", "user_code", "user_traceback"]

Data: TypeAlias = "Dataset[Any] | tuple[Tensor, ...]"
Metric: TypeAlias = "Callable[[Tensor, Tensor], float]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What is learned. In a tuple of tensors the last is the target and the others are the model's inputs."""

    model: nn.Module | Callable[[], nn.Module]
    data: Data | Callable[[], Data] = field(repr=False)
    loss: Callable[[Any, Any], Tensor]
    """Of outputs and targets: the mean over their samples."""
    optimizer: Callable[[Any], Optimizer]
    """Given the trainable parameters, which also answer as the module does: see `Parameters`."""
    batch_size: int
    """Samples of one step, over all workers."""
    test: Data | Callable[[], Data] | None = field(default=None, repr=False)
    metric: str | Metric | None = None
    """Of the outputs and targets of all test samples; higher is better."""
    target: float | None = None
    """The metric's value that counts as reached."""
    clip_norm: float | None = None
    """The bound on the gradient's global norm."""
    schedule: Callable[[Optimizer], LRScheduler] | None = None
    """Stepped once an update."""

    def __post_init__(self) -> None:
        _check_model(self.model)
        _check_loss(self.loss)
        remedy = "give what makes one, such as lambda params: torch.optim.SGD(params, lr=0.1)"
        _require(callable(self.optimizer), "optimizer", "must be a callable", self.optimizer, remedy)
        schedules = self.schedule is None or callable(self.schedule)
        _require(schedules, "schedule", "must be a callable", self.schedule, "give what makes a scheduler")
        if not _is_factory(self.data):
            _check_data("data", self.data)
        if self.test is not None and not _is_factory(self.test):
            _check_data("test", self.test)
        self._check_numbers()
        self._check_metric()

    def _check_numbers(self) -> None:
        counts = isinstance(self.batch_size, int) and _is_finite(self.batch_size) and self.batch_size > 0
        remedy = "it counts the samples of one step, over all workers"
        _require(counts, "batch_size", "must be an int of at least 1", self.batch_size, remedy)
        clips = self.clip_norm is None or (_is_finite(self.clip_norm) and self.clip_norm > 0)
        _require(clips, "clip_norm", "must be finite and above 0", self.clip_norm, "leave it out for none")
        aims = self.target is None or _is_finite(self.target)
        _require(aims, "target", "must be a finite number", self.target, "leave it out for none")

    def _check_metric(self) -> None:
        tests = self.metric is None or self.test is not None
        _require(tests, "test", "must be given with a metric", self.test, "add test=… or drop metric")
        aims = self.target is None or self.metric is not None
        _require(aims, "metric", "must be given with a target", self.metric, "add metric=… or drop target")
        if isinstance(self.metric, str) and self.metric not in _METRICS:
            raise UnknownNameError("metric", self.metric, _METRICS)
        known = self.metric is None or isinstance(self.metric, str) or callable(self.metric)
        remedy = "give 'accuracy' or a callable (outputs, targets) -> float"
        _require(known, "metric", "must be a name or a callable", self.metric, remedy)

    def build_model(self, seed: int) -> nn.Module:
        """The model as this seed initialises it. A model given as an instance is copied, never touched."""
        from torch import nn

        with _seeded(seed), user_code("the model could not be built"):
            model = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        _check_model(model, built=True)
        return model

    def build_data(self) -> Data:
        """The training samples: a tuple of tensors, or a map-style dataset."""
        return _build_data("data", self.data)

    def build_test(self) -> Data | None:
        """The test samples, or None where the task has none."""
        return None if self.test is None else _build_data("test", self.test)

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of this model's trainable parameters."""
        from torch.optim import Optimizer

        with user_code("the optimizer could not be built"):
            made = self.optimizer(Parameters(model))
        bound = "must make a torch.optim.Optimizer"
        _require(isinstance(made, Optimizer), "optimizer", bound, made, "return the optimizer")
        remedy = "its step computes the loss again, which no parallel strategy can do; choose another"
        _require(_steps_alone(made), "optimizer", "must step without a closure", type(made).__name__, remedy)
        own = {id(parameter) for parameter in model.parameters()}
        foreign = sum(id(one) not in own for group in made.param_groups for one in group["params"])
        remedy = "make it of the parameters that it is given, not of another copy of the model"
        _require(not foreign, "optimizer", "must hold this model's parameters", f"{foreign} others", remedy)
        return made

    def build_schedule(self, optimizer: Optimizer) -> LRScheduler | None:
        """The learning-rate schedule of this optimizer, or None where the task has none."""
        from torch.optim.lr_scheduler import LRScheduler

        if self.schedule is None:
            return None
        with user_code("the schedule could not be built"):
            made = self.schedule(optimizer)
        _require(isinstance(made, LRScheduler), "schedule", "must make an LRScheduler", made, "return it")
        remedy = "it is stepped once an update, with no argument; choose another"
        _require(_steps_alone(made), "schedule", "must step without a metric", type(made).__name__, remedy)
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
    _require(fits, "metric 'accuracy'", bound, shapes, "give a metric of your own")
    return float((outputs.argmax(-1) == targets).double().mean())


_METRICS: Mapping[str, Metric] = {"accuracy": accuracy}


def load_task(spec: str | os.PathLike[str]) -> Task:
    """The task of `file.py` or `file.py:name`, where the name is of a Task or of a function that makes one.

    Without a name it is the variable `task`, else the only Task of the file, else what `task()` makes.
    """
    path, name = _split(os.fspath(spec))
    found = _find(_import_file(path), path, name)
    if isinstance(found, Task):
        return found
    with user_code(f"the task of {path} could not be made"):
        made = found()
    if isinstance(made, Task):
        return made
    raise ConfigurationError(f"{path}:{name or 'task'}", "must return a Task", made, "return pl.Task(…)")


def user_traceback(error: BaseException) -> str:
    """The traceback of an error in the user's code, without the frames of Paceline and of importlib."""
    report = traceback.TracebackException.from_exception(error)
    pending = [report]
    while pending:
        part = pending.pop()
        kept = [frame for frame in part.stack if not frame.filename.startswith(_NOT_THE_USERS)]
        part.stack = traceback.StackSummary.from_list(kept)
        linked = (part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ()))
        pending += [other for other in linked if other is not None]
    return "".join(report.format()).rstrip()


_NOT_THE_USERS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, "<frozen importlib")


@contextmanager
def user_code(failure: str) -> Iterator[None]:
    """Whatever the user's code raises in this block becomes a TaskError with the user's own traceback."""
    try:
        yield
    except PacelineError:
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(f"{failure}:\n{user_traceback(error)}") from None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Chance as this seed has it, whichever generator the user's code draws from; undone afterwards."""
    import numpy as np
    import torch

    python, legacy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


def _require(holds: bool, argument: str, bound: str, value: object, remedy: str) -> None:
    if not holds:
        raise ConfigurationError(argument, bound, value, remedy)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_factory(given: object) -> bool:
    # A dataset may be callable too: what can be indexed is data. A class cannot, so it is a factory.
    return callable(given) and not hasattr(type(given), "__getitem__")


def _steps_alone(stepper: Any) -> bool:
    """Whether `stepper.step()` needs no argument."""
    given = inspect.signature(stepper.step).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in given)


def _check_model(model: object, *, built: bool = False) -> None:
    from torch import nn
    from torch.nn.parameter import is_lazy

    if not built and callable(model) and not isinstance(model, nn.Module):
        return
    remedy = "give the module, or a callable without arguments that makes it"
    if not isinstance(model, nn.Module):
        raise ConfigurationError("model", "must be an nn.Module or make one", model, remedy)
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    remedy = "call the model once on a sample where you make it"
    _require(not lazy, "model", "must have no lazy parameters", ", ".join(lazy), remedy)
    trains = any(p.requires_grad and p.is_floating_point() for p in model.parameters())
    bound, name = "must have a trainable floating-point parameter", type(model).__name__
    _require(trains, "model", bound, name, "nothing in it could be learned")


def _check_loss(loss: object) -> None:
    from torch import nn

    _require(callable(loss), "loss", "must be callable", loss, "give a function (output, target) -> scalar")
    is_class = isinstance(loss, type) and issubclass(loss, nn.Module)
    _require(not is_class, "loss", "must be an instance, not a class", loss, "add () after its name")
    learns = isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters())
    _require(not learns, "loss", "must have no trainable parameters", loss, "put them into the model")


def _check_data(argument: str, data: Any) -> None:
    from torch import Tensor
    from torch.utils.data import IterableDataset

    tensors = isinstance(data, tuple | list) and bool(data) and all(isinstance(part, Tensor) for part in data)
    if isinstance(data, tuple) or tensors:
        size = _check_tensors(argument, data)
    else:
        bound = "must be a tuple of tensors, a map-style Dataset, or a factory of either"
        mapped = hasattr(data, "__getitem__") and not isinstance(data, IterableDataset | Tensor | dict | str)
        _require(mapped, argument, bound, data, "a Dataset needs __getitem__ and __len__")
        try:
            size = len(data)
        except (TypeError, NotImplementedError):
            raise ConfigurationError(argument, "must have a length", data, "give it a __len__") from None
    _require(size > 0, argument, "must hold at least one sample", size, "look at how it is loaded")


def _check_tensors(argument: str, tensors: Any) -> int:
    from torch import Tensor

    kinds = f"{type(tensors).__name__} of {', '.join(type(part).__name__ for part in tensors)}"
    usable = isinstance(tensors, tuple) and all(isinstance(part, Tensor) and part.ndim for part in tensors)
    remedy = "use torch.as_tensor, and () around them"
    _require(usable, argument, "must be a tuple of tensors, each with a dimension of samples", kinds, remedy)
    _require(len(tensors) > 1, argument, "must be two tensors or more", kinds, "give inputs, then the target")
    sizes = [len(part) for part in tensors]
    bound = "must be tensors of equal first dimension"
    _require(len(set(sizes)) == 1, argument, bound, sizes, "each holds one entry a sample")
    return sizes[0]


def _build_data(argument: str, given: Any) -> Data:
    from torch.utils.data import TensorDataset

    if _is_factory(given):
        # A constant seed: the data of a task is the same on every rank and in every run.
        with _seeded(0), user_code(f"the {argument} could not be built"):
            given = given()
        _check_data(argument, given)
    # Tensors take the fast path, whichever way they were wrapped.
    if type(given) is TensorDataset and len(given.tensors) > 1:
        return given.tensors
    built: Data = given
    return built


def _split(spec: str) -> tuple[Path, str]:
    """A spec as the file's path and the task's name, which is empty where none is given."""
    text, separator, name = spec.rpartition(":")
    if not separator or Path(spec).is_file():
        text, name = spec, ""
    path = Path(text).expanduser()
    usable = path.is_file() and path.suffix == ".py"
    _require(usable, "task", "must be a Python file that exists", text, "give it as file.py or file.py:name")
    return path.resolve(), name


def _import_file(path: Path) -> ModuleType:
    """The file as a module of its own name, which travels by value: no worker can import it by that name."""
    import cloudpickle

    name = f"paceline_task_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec, "a .py file has a spec"
    assert spec.loader, "and a loader"
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # for good: the file's functions may import their neighbours later
    sys.modules[name] = module
    try:
        with user_code(f"{path} could not be loaded"):
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ConfigurationError):
            error.add_note(_where(error, path))
        raise
    cloudpickle.register_pickle_by_value(module)
    return module


def _where(error: BaseException, path: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"in {path}" + (f", line {lines[-1]}" if lines else "")


def _find(module: ModuleType, path: Path, name: str) -> Any:
    """The Task that is meant, or the function that makes it."""
    values = vars(module)
    tasks = {id(value): key for key, value in values.items() if isinstance(value, Task)}
    if name:
        if name not in values:
            raise UnknownNameError(f"the task's name in {path}", name, tasks.values())
        found, bound = values[name], "must be a Task or make one"
        _require(isinstance(found, Task) or callable(found), name, bound, found, "name another")
        return found
    default = values.get("task")
    if isinstance(default, Task):
        return default
    if len(tasks) > 1:
        names = ", ".join(sorted(tasks.values()))
        raise ConfigurationError("task", "must be one in its file, or named", names, f"give {path.name}:name")
    if tasks:
        return values[next(iter(tasks.values()))]
    _require(callable(default), "task", "must be in its file", str(path), "write task = pl.Task(…) in it")
    return default
