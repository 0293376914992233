"""The plain state dict of a checkpoint's model, put together from what the ranks hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.checkpoints.checkpoint import Checkpoint
from paceline.reading import Fields, list_of, mapping_of, whole

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["model_state"]

_PARAMETERS, _BUFFERS = "parameters/", "buffers/"


def model_state(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The model's tensors by their names in its state dict. Every file that is read is verified.

    `facts["model"]` says which, and every part of it may be left out:

    - `"ranks"`: those that have the model, or a part of it each. Left out: all.
    - `"is_mean"`: whether these have parameters of their own, whose mean is the model. Otherwise, and for buffers, each
      tensor is the first rank's that has it.
    - `"names"`: by the name in the state dict, the name in the ranks' files. Left out: all parameters and buffers.
    """
    names, ranks, is_mean = _asked(checkpoint)
    terms: dict[str, list[Tensor]] = {}
    for rank in ranks:
        for name, tensor in checkpoint.shard(rank).tensors.items():
            if name.startswith((_PARAMETERS, _BUFFERS)):
                terms.setdefault(name, []).append(tensor)
    wanted = names or {name.partition("/")[2]: name for name in terms}
    return {
        name: _mean(terms[kept]) if is_mean and kept.startswith(_PARAMETERS) else terms[kept][0]
        for name, kept in wanted.items()
    }


def _asked(checkpoint: Checkpoint) -> tuple[Mapping[str, str], list[int], bool]:
    fields = Fields(checkpoint.facts.get("model", {}))
    names = fields.get("names", mapping_of(str, str), {})
    ranks = fields.get("ranks", list_of(whole), list(range(checkpoint.ranks)))
    return names, ranks, bool(fields.get("is_mean", bool, False))


def _mean(tensors: list[Tensor]) -> Tensor:
    first = tensors[0]
    if len(tensors) == 1:
        return first
    total = first.clone()
    for other in tensors[1:]:
        total += other
    return total / len(tensors)
