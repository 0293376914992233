"""Messages between the server and its clients.

Each round the server sends every client the model (its parameters, then its buffers), or an empty tensor if the client
is not sampled. A sampled client answers with the change of the parameters by its training, then with its buffers. If it
drops out, it answers with an empty tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MODEL = 1  # from the server
ANSWER = 2  # from a client; header: number of samples trained on, and their mean loss

Adjust = Callable[["Tensor", "Tensor", "Tensor"], None]
"""Function of a client's gradient, its parameters and the round's model. It changes the gradient before its use."""

Update = Callable[["Tensor"], None]
"""Function that changes the server's parameters by the mean difference of the clients."""
