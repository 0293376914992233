"""Key-value caches of language models, which training does not use and tracing cannot represent."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from torch import nn

_log = logging.getLogger("paceline")


@contextlib.contextmanager
def without_caches(module: nn.Module) -> Iterator[None]:
    """Trace a model without its key-value cache: set `config.use_cache` of Hugging Face models to False, then restore
    it.
    """
    configs = [config for config in _configs(module) if getattr(config, "use_cache", False)]
    if configs:
        _log.info("%s is traced with use_cache=False: training needs no cache", type(module).__name__)
    for config in configs:
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs:
            config.use_cache = True


def _configs(module: nn.Module) -> list[Any]:
    """Return the configurations of a module and of the modules in it, each once."""
    found = (getattr(each, "config", None) for each in module.modules())
    return list({id(config): config for config in found if config is not None}.values())
