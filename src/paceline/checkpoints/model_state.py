"""The plain state dict of a checkpoint's model, assembled from the files of the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.checkpoints.checkpoint import Checkpoint
from paceline.files.reading import Fields, list_of, mapping_of, whole

if TYPE_CHECKING:
    from torch import Tensor

_PARAMETERS, _BUFFERS = "parameters/", "buffers/"


def model_state(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the model's tensors by their names in its state dict. Every file that is read is verified.

    `facts["model"]` may have these entries:

    - `"ranks"`: ranks that have the model, or a part of it each. Default: all ranks.
    - `"is_mean"`: whether each rank has its own parameters, and the model is their mean. Otherwise, and for buffers,
      each tensor is taken from the first rank that has it.
    - `"names"`: maps a name in the state dict to the name in the rank files. Default: all parameters and buffers.
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
