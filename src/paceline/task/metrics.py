"""Metrics: the built-in ones, whether higher or lower is better, and the errors of a user's metric.

Torch is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from paceline.errors import ConfigurationError, PacelineError
from paceline.system.user_code import name_of, user_traceback
from paceline.task.checks import look_of, require

if TYPE_CHECKING:
    from torch import Tensor

Metric: TypeAlias = "Callable[[Any, Any], float] | Any"
"""A function of outputs and targets, an object with `update(outputs, targets)` and `compute()`, or its class."""
Better: TypeAlias = Literal["higher", "lower"]
HIGHER: Better = "higher"
LOWER: Better = "lower"

_LOWER_WORDS = ("loss", "perplexity", "error", "rmse", "mse", "mae")
"""Parts of metric names for which lower is better by default."""
_NEGATED = ("neg_", "minus_", *(f"negative_{word}" for word in (*_LOWER_WORDS, "mean", "root")))
"""Prefixes that reverse this rule, as in scikit-learn's neg_mean_squared_error, or in negative_loss.
negative_log_likelihood is an exception, because it is a loss."""


# Named metrics


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the fraction of samples for which the largest output is at the index given by the target."""
    # Otherwise (n, 1) targets would broadcast to n² comparisons, and a single output would always be right.
    fits = outputs.ndim > 0 and outputs.shape[-1] > 1 and outputs.shape[:-1] == targets.shape
    bound = "needs outputs of shape (…, classes), with 2 classes or more, and targets of shape (…)"
    require(fits, "metric 'accuracy'", bound, _shapes(outputs, targets), "pass your own metric function")
    return float((outputs.argmax(-1) == targets).double().mean())


def mse(outputs: Tensor, targets: Tensor, *, called: str = "mse") -> float:
    """Return the mean squared difference. `called` is the metric's name in error messages."""
    return float(_differences(called, outputs, targets).square().mean())


def mae(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean absolute difference."""
    return float(_differences("mae", outputs, targets).abs().mean())


def _differences(name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    remedy = "otherwise each output would be compared with every target; squeeze or unsqueeze one of them"
    bound = "needs outputs and targets of the same shape"
    require(outputs.shape == targets.shape, f"metric {name!r}", bound, _shapes(outputs, targets), remedy)
    return outputs.double() - targets.double()


def _shapes(outputs: Tensor, targets: Tensor) -> str:
    return f"{tuple(outputs.shape)} and {tuple(targets.shape)}"


METRIC_NAMES = ("accuracy", "mae", "mse", "rmse", "loss", "perplexity")
"""Names of the built-in metrics."""


# Higher or lower is better


def better_of(metric: Any, said: str | None = None, called: str = "") -> Better:
    """Return whether higher or lower values are better: from the task, the metric object, or its name. Default: higher.

    `said` is the task's own choice, None if it has none. `called` is the name of the metric in the task.
    """
    if said is not None:
        return LOWER if said == LOWER else HIGHER
    own = getattr(metric, "higher_is_better", None)  # an attribute of torchmetrics
    if isinstance(own, bool):
        return HIGHER if own else LOWER
    names = [name.lower().lstrip("_") for name in (called, name_of(metric))]
    is_loss = any(word in name for name in names for word in _LOWER_WORDS)
    return LOWER if is_loss and not any(name.startswith(_NEGATED) for name in names) else HIGHER


def reaches(value: float | None, target: float | None, better: str) -> bool:
    """Return whether a metric's value is as good as its target. False if either is None."""
    if value is None or target is None:
        return False
    return value <= target if better == LOWER else value >= target


# Errors

_MISFITS = (TypeError, AttributeError, LookupError, ValueError, RuntimeError)
"""Errors raised if the outputs are not what a metric expects. Any other error is a bug in the metric."""


def value_of(metric: Metric, outputs: Any, targets: Any) -> float:
    """Return the metric's value. Raise an error that names the metric if it fails or does not return a number."""
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
