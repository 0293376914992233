"""Messages between the server and its clients.

In each round the server sends the model to the sampled clients: the parameters, then the buffers. It sends an empty
tensor to all others. A sampled client answers with the difference of its parameters, then with its buffers. A client
that drops out answers with an empty tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MODEL = 1  # from the server
ANSWER = 2  # from a client; header: number of samples trained on, and their mean loss

Adjust = Callable[["Tensor", "Tensor", "Tensor"], None]
"""Function of a client's gradient, its parameters and the round's model. It changes the gradient in place."""

Update = Callable[["Tensor"], None]
"""Function that changes the server's parameters by the mean difference of the clients."""
