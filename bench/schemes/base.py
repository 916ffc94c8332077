"""The interface of peers: one object codes one tensor, again and again, into buffers of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import ml_dtypes
import numpy as np

from lynxq.naming import Kind

Values = np.ndarray[Any, Any]


class UnsuitableError(Exception):
    """A scheme cannot code such a tensor."""


class Peer(ABC):
    """A scheme at work on one bfloat16 tensor [tokens, heads, head_dim], C-contiguous, in one thread.

    What needs no repetition is done when it is made; `encode` and `decode` are what is timed, from the tensor to what
    is stored, and from that to bfloat16 values in `out`.
    """

    def __init__(self, x: Values, kind: Kind) -> None:
        self.x = x
        self.kind = kind
        self.out = np.zeros(x.shape, ml_dtypes.bfloat16)

    @abstractmethod
    def encode(self) -> None: ...

    @abstractmethod
    def decode(self) -> None: ...

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Everything that is stored."""


def widen(source: Values, target: Values) -> None:
    """bfloat16 to float32, at the speed of one pass of numpy."""
    np.left_shift(source.view(np.uint16), np.uint32(16), out=target.view(np.uint32), dtype=np.uint32)
