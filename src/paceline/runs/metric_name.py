"""The name of a task's metric. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping

_UNNAMED = ("", "none", "<lambda>")


def metric_name_in(fingerprint: Mapping[str, str]) -> str:
    """Return the name of the metric, from the fingerprint of a task; "metric" if it has no name."""
    name = fingerprint.get("metric", "")
    if name == "loss":
        return "test loss"  # "loss" is the loss of the last step
    return "metric" if name in _UNNAMED else name
