"""The parameters of a whole model on a rank that stores a part of it, for optimizer factories.

Every rank needs the parameter groups of the whole model. A factory may select parameters by position, name, size
or attribute. So on every rank the factory receives every trainable parameter of the model in its whole shape. A
parameter that the rank does not store takes no memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from paceline.model.layout import Layout
from paceline.task.loops import copied


def whole_parameters(part: nn.Module, whole: Layout) -> nn.Module:
    """Return a copy of a part of a model that has all trainable parameters of the model.

    Parameters that the part stores whole, frozen parameters and buffers are shared with the part. `whole` is the
    layout of the model.
    """
    shapes = dict(zip(whole.names, whole.shapes, strict=True))
    memo: dict[int, object] = {id(buffer): buffer for buffer in part.buffers()}
    for name, parameter in part.named_parameters():
        shape = shapes.get(name, parameter.shape)
        if name not in shapes or (parameter.requires_grad and parameter.shape == shape):
            memo[id(parameter)] = parameter
        else:
            memo[id(parameter)] = nn.Parameter(_placeholder(parameter, shape))
    return copied(part, memo)


def _placeholder(parameter: Tensor, shape: torch.Size) -> Tensor:
    if not parameter.is_meta:
        # A split parameter. Some optimizers (Adagrad) create state in the constructor. Only a part of that state is
        # used.
        return parameter.detach().new_zeros(()).expand(shape)
    # Fake, not meta: fused optimizers refuse the meta device.
    with FakeTensorMode():
        return torch.empty(shape, dtype=parameter.dtype)
