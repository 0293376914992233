"""Metrics: those that have a name, which way each is better, and what may go wrong where one is computed.

Torch is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from paceline.errors import ConfigurationError, PacelineError
from paceline.task_checks import look_of, require
from paceline.user_code import name_of, user_traceback

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "HIGHER",
    "LOWER",
    "METRIC_NAMES",
    "Better",
    "Metric",
    "accuracy",
    "better_of",
    "mae",
    "mse",
    "reaches",
    "value_of",
]

Metric: TypeAlias = "Callable[[Any, Any], float] | Any"
"""A function of outputs and targets, or what has `update(outputs, targets)` and `compute()`, or a class of such."""
Better: TypeAlias = Literal["higher", "lower"]
HIGHER: Better = "higher"
LOWER: Better = "lower"

_LOWER_WORDS = ("loss", "perplexity", "error", "rmse", "mse", "mae")
"""A metric whose name has one of these is better the lower it is, unless the task says otherwise."""
_NEGATED = ("neg_", "minus_", *(f"negative_{word}" for word in (*_LOWER_WORDS, "mean", "root")))
"""But not if it begins like this: scikit-learn's neg_mean_squared_error, or a negative_loss. A negative_log_likelihood
is a loss."""


# Named metrics


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of samples whose largest output is the one that the target names."""
    # Otherwise (n, 1) targets would broadcast to n² comparisons, and a single output would always be right.
    fits = outputs.ndim > 0 and outputs.shape[-1] > 1 and outputs.shape[:-1] == targets.shape
    bound = "needs outputs of shape (…, classes), with 2 classes or more, and targets of shape (…)"
    require(fits, "metric 'accuracy'", bound, _shapes(outputs, targets), "give a metric of your own")
    return float((outputs.argmax(-1) == targets).double().mean())


def mse(outputs: Tensor, targets: Tensor, *, called: str = "mse") -> float:
    """The mean squared difference. `called`: by whom, for its errors."""
    return float(_differences(called, outputs, targets).square().mean())


def mae(outputs: Tensor, targets: Tensor) -> float:
    """The mean absolute difference."""
    return float(_differences("mae", outputs, targets).abs().mean())


def _differences(name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    remedy = "otherwise each output would be compared with every target; squeeze or unsqueeze one of them"
    bound = "needs outputs and targets of one shape"
    require(outputs.shape == targets.shape, f"metric {name!r}", bound, _shapes(outputs, targets), remedy)
    return outputs.double() - targets.double()


def _shapes(outputs: Tensor, targets: Tensor) -> str:
    return f"{tuple(outputs.shape)} and {tuple(targets.shape)}"


METRIC_NAMES = ("accuracy", "mae", "mse", "rmse", "loss", "perplexity")
"""What a task's metric may be called by."""


# Which way is better


def better_of(metric: Any, said: str | None = None, called: str = "") -> Better:
    """Which way a metric is better: as the task says, or the metric itself, or its name; higher if none does.

    `called`: the name that the task gives it.
    """
    if said is not None:
        return LOWER if said == LOWER else HIGHER
    own = getattr(metric, "higher_is_better", None)  # as torchmetrics has it
    if isinstance(own, bool):
        return HIGHER if own else LOWER
    names = [name.lower().lstrip("_") for name in (called, name_of(metric))]
    is_loss = any(word in name for name in names for word in _LOWER_WORDS)
    return LOWER if is_loss and not any(name.startswith(_NEGATED) for name in names) else HIGHER


def reaches(value: float | None, target: float | None, better: str) -> bool:
    """Whether a metric's value is as good as its target."""
    if value is None or target is None:
        return False
    return value <= target if better == LOWER else value >= target


# What may go wrong

_MISFITS = (TypeError, AttributeError, LookupError, ValueError, RuntimeError)
"""What is raised where outputs are not what a metric expects. Any other error is the metric's own."""


def value_of(metric: Metric, outputs: Any, targets: Any) -> float:
    """The metric's value. What it cannot take, and what is no number, is refused with the argument's name."""
    try:
        value = metric(outputs, targets)
    except PacelineError:
        raise
    except _MISFITS as error:
        found = f"outputs {look_of(outputs)} and targets {look_of(targets)}"
        remedy = f"it failed:\n{user_traceback(error)}"
        bound = "must take the outputs and targets of the test samples"
        raise ConfigurationError(f"metric {name_of(metric)!r}", bound, found, remedy) from None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        remedy = "return a float, or a tensor of one element"
        raise ConfigurationError(
            f"metric {name_of(metric)!r}", "must return one number", look_of(value), remedy
        ) from None
