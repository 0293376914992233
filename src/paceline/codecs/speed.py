"""How long codecs take on this machine.

Processor time is measured. Seconds of the wall clock also contain the time of other processes: on a machine with more
runnable processes than cores they are several times as long, and with them the predicted costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import median
from typing import NamedTuple

from paceline.codecs.codec import MessageCodec
from paceline.codecs.powersgd import PowerSGD
from paceline.codecs.spelling import codec_of

_SIDE = 1024  # of the matrix that PowerSGD is measured on
_PASSES = 2
"""Decodings of each message: the receiver needs the values, and the sender keeps the same ones."""
_TRIES = 9


class Speed(NamedTuple):
    """Seconds and bytes for one float32 number."""

    encode_s: float
    decode_s: float
    code_bytes: float

    def seconds(self, code_bytes: float, codec: str, ranks: int) -> float:
        """Return the seconds in which a rank encodes and decodes, if it sends `code_bytes` bytes of codes.

        A codec of messages encodes and decodes what it sends. The others encode a gradient once: with PowerSGD a ring
        sends 2 (p - 1)/p of its factors; with the rest a rank sends p - 1 codes, and decodes those of all ranks.
        """
        made, numbers = codec_of(codec), code_bytes / self.code_bytes
        if isinstance(made, MessageCodec):
            return numbers * (self.encode_s + _PASSES * self.decode_s)
        if isinstance(made, PowerSGD):
            return numbers * ranks / (2 * max(1, ranks - 1)) * (self.encode_s + _PASSES * self.decode_s)
        return numbers / max(1, ranks - 1) * (self.encode_s + (1 + ranks) * self.decode_s)


@lru_cache(maxsize=32)
def speed_of(codec: str, numbers: int = _SIDE * _SIDE) -> Speed:
    """Measure a codec on `numbers` random float32 numbers, in one thread of this process's setting."""
    import torch

    made = codec_of(codec)
    assert made is not None, "the codec is not none"
    values = torch.randn(numbers, generator=torch.Generator().manual_seed(0))
    if isinstance(made, MessageCodec):
        codes = made.encode(values)
        encode_s = _processor_s(lambda: made.encode(values))
        into = torch.empty_like(values)
        decode_s = _processor_s(lambda: into.copy_(made.decode(codes, values.dtype)))
    else:
        shapes: Sequence[Sequence[int]] = [(numbers // _SIDE, _SIDE), (numbers % _SIDE,)]
        memory = torch.zeros(made.memory_length(shapes))
        codes = made.encode(values, shapes, memory)
        encode_s = _processor_s(lambda: made.encode(values, shapes, memory))
        into = torch.empty_like(values)
        decode_s = _processor_s(lambda: made.decode(codes, into, shapes))
    return Speed(encode_s / numbers, decode_s / numbers, codes.nbytes / numbers)


def _processor_s(work: Callable[[], object]) -> float:
    """Return the median processor time of a few calls of `work` in this thread."""
    work()  # the first call also gets memory from the operating system
    taken_s = []
    for _ in range(_TRIES):
        start_s = time.thread_time()
        work()
        taken_s.append(time.thread_time() - start_s)
    return median(taken_s)
