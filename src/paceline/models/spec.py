"""A GPT of shapes only, described in one line: "gpt:layers=96,hidden=12288,heads=96,sequence=2048"."""

from __future__ import annotations

from typing import Any

import torch

from paceline.errors import ConfigurationError, UnknownNameError
from paceline.models.gpt import GPT
from paceline.task.task import Task

_NEEDED = ("layers", "hidden", "heads", "sequence")
_NUMBERS = (*_NEEDED, "vocabulary", "key_heads", "ffn")
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_VOCABULARY = 51200


def gpt_of(text: str, batch_size: int | None) -> Task:
    """Return the task of a description. With dtype=bf16 (default), the optimizer has a master copy of 32 bits."""
    given: dict[str, str] = {}
    for item in filter(None, text.partition(":")[2].split(",")):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in (*_NUMBERS, "dtype"):
            raise UnknownNameError("gpt", key, (*_NUMBERS, "dtype"))
        if key in given:
            raise ConfigurationError(f"gpt:{key}", "must be given once", text, "remove one of them")
        given[key] = value
    name = given.pop("dtype", "bf16")
    if name not in _DTYPES:
        raise UnknownNameError("gpt:dtype", name, _DTYPES)
    for key in _NEEDED:
        if key not in given:
            raise ConfigurationError(f"gpt:{key}", "must be given", text, f"write gpt:{key}=…")
    if batch_size is None:
        raise ConfigurationError("batch_size", "must be given with gpt:…", None, "add --batch-size 512")
    words: dict[str, Any] = {"vocabulary": _VOCABULARY} | {key: _number(key, given[key]) for key in given}
    master = torch.float32 if name == "bf16" else None
    return GPT(batch_size=batch_size, dtype=_DTYPES[name], master_dtype=master, **words)


def _number(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigurationError(f"gpt:{key}", "must be a whole number", value, f"write {key}=24") from None
