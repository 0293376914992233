"""What the server and its clients tell each other.

Each round the server sends every client the model (its parameters, then its buffers), or a tensor without elements if
the client is not sampled. A sampled client answers with the difference that its training made to the parameters, then
its buffers; or with a tensor without elements if it drops out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ANSWER", "MODEL", "Adjust", "Update"]

MODEL = 1  # from the server
ANSWER = 2  # from a client; its header: the samples that it went through, and their mean loss

Adjust = Callable[["Tensor", "Tensor", "Tensor"], None]
"""Given a client's gradient, its parameters and the round's model: changes the gradient before it is applied."""

Update = Callable[["Tensor"], None]
"""Changes the server's parameters by the mean difference of the clients."""
