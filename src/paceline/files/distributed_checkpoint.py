"""Models as folders of torch.distributed.checkpoint (DCP), which FSDP and torchtitan read and write.

No process group is needed. DCP stores its index (`.metadata`) as a pickle: read only folders that you trust.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor

INDEX = ".metadata"
_MODEL = "model"
_PREFIXES = ("", "model.", "module.", "model.module.", "app.model.", "state_dict.")
"""Keys under which other programs save the model."""


def is_distributed_checkpoint(folder: Path) -> bool:
    return (folder / INDEX).is_file()


def write_distributed_checkpoint(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Write a state dict as `{"model": state}`. The folder must not exist. It is created by a rename when all files
    are complete."""
    if folder.exists():
        raise ConfigurationError(
            "--out", "must be a new folder", str(folder), "remove it, or use another one"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    written = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that there is no process group
            _dcp().save({_MODEL: dict(state)}, checkpoint_id=str(written), no_dist=True)
        written.chmod(0o755)
        written.rename(folder)
    except BaseException:
        shutil.rmtree(written, ignore_errors=True)
        raise


def read_distributed_checkpoint(folder: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model, by the names in its state dict `like`. Refuse a folder without one of them."""
    if not is_distributed_checkpoint(folder):
        remedy = (
            f"give a folder with {INDEX}, written by torch.distributed.checkpoint or `paceline export --dcp`"
        )
        raise ConfigurationError(
            "resume", "must be a folder of torch.distributed.checkpoint", str(folder), remedy
        )
    stored = _dcp().FileSystemReader(str(folder)).read_metadata().state_dict_metadata
    prefix = max(_PREFIXES, key=lambda each: sum(each + name in stored for name in like))
    for name, tensor in like.items():
        found = getattr(stored.get(prefix + name), "size", None)
        if found is None or tuple(found) != tuple(tensor.shape):
            bound = f"must hold {prefix}{name} with the shape {tuple(tensor.shape)}"
            shape = "nothing of that name" if found is None else f"the shape {tuple(found)}"
            raise ConfigurationError("resume", bound, f"{shape} in {folder}", "use the model that was saved")
    loaded = {prefix + name: tensor.detach().clone() for name, tensor in like.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _dcp().load(loaded, checkpoint_id=str(folder), no_dist=True)
    return {name: loaded[prefix + name] for name in like}


def _dcp() -> Any:
    return importlib.import_module("torch.distributed.checkpoint")
