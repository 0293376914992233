"""Other people's ways to train that a comparison may stand against."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.comparison.contender import Trainer
from paceline.errors import ConfigurationError, UnknownNameError

if TYPE_CHECKING:
    from paceline.clusters.job import Cluster

__all__ = ["BASELINES", "baseline_trainers"]

BASELINES: Mapping[str, tuple[str, str]] = {"ddp": ("paceline.baselines.ddp", "train_with_ddp")}
"""Name -> module and function, which takes the words of `pl.train`."""


def baseline_trainers(names: str | Sequence[str], cluster: Cluster) -> dict[str, Trainer]:
    """What trains as each of these baselines does."""
    chosen = [names] if isinstance(names, str) else list(names)
    unknown = next((name for name in chosen if name not in BASELINES), None)
    if unknown is not None:
        raise UnknownNameError("against", str(unknown), BASELINES)
    if chosen:
        _check_cluster(cluster)
    return {name: getattr(importlib.import_module(BASELINES[name][0]), BASELINES[name][1]) for name in chosen}


def _check_cluster(cluster: Cluster) -> None:
    from paceline.clusters.local.local import Local

    if not isinstance(cluster, Local) or not isinstance(cluster.link, str) or cluster.compute is not None:
        remedy = "leave against out, or use pl.Local without compute and without an emulated link"
        raise ConfigurationError(
            "against", "needs local workers, without an emulated link", str(cluster), remedy
        )
