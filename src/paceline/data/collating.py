"""Fetching samples one by one and collating them into a batch. Errors name the number of the sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.utils.data import default_collate

from paceline.errors import ConfigurationError, PacelineError
from paceline.system.user_code import user_traceback
from paceline.task.checks import look_of

Collate = Callable[[list[Any]], Any]


def fetched(dataset: Any, numbers: Iterable[int]) -> list[Any]:
    """Return the samples with these numbers."""
    samples = []
    for number in numbers:
        try:
            samples.append(dataset[number])
        except Exception as error:
            error.add_note(f"while sample {number} of the data was fetched")
            raise
    return samples


def collated(collate: Collate, samples: list[Any], numbers: Sequence[int]) -> Any:
    """Collate the samples with these numbers into one batch."""
    try:
        return collate(samples)
    except PacelineError:
        raise
    except Exception as error:
        raise _refusal(collate, samples, numbers, error) from None


def _refusal(
    collate: Collate, samples: list[Any], numbers: Sequence[int], error: Exception
) -> ConfigurationError:
    first, odd = numbers[0], _odd_one(collate, samples)
    found = f"samples {', '.join(map(str, numbers[:8]))}{' …' if len(numbers) > 8 else ''}"
    if odd is not None:
        found = f"sample {numbers[odd]}: {_look(samples[odd])}"
        found += f"; sample {first}: {_look(samples[0])}" if odd else ""
    if collate is default_collate:
        bound = "must have samples that torch can collate into one batch"
        remedy = f"give them equal shapes, or pad them with Task(collate=…) ({type(error).__name__}: {error})"
        return ConfigurationError("data", bound, found, remedy)
    remedy = f"it failed:\n{user_traceback(error)}"
    return ConfigurationError("collate", "must collate samples into one batch", found, remedy)


def _odd_one(collate: Collate, samples: list[Any]) -> int | None:
    """Return the index of a sample that cannot be collated alone or with the first one.

    None if only the whole list fails.
    """
    for place, sample in enumerate(samples):
        try:
            collate([samples[0], sample] if place else [sample])
        except Exception:
            return place
    return None


def _look(sample: Any) -> str:
    if isinstance(sample, tuple | list):
        return f"({', '.join(map(look_of, sample[:6]))})"
    if isinstance(sample, dict):
        return f"({', '.join(f'{name} {look_of(value)}' for name, value in list(sample.items())[:6])})"
    return look_of(sample)
