"""zfp at a fixed rate: transform coding of blocks of 4 tokens by 4 channels."""

from __future__ import annotations

import numpy as np
import zfpy

from lynxq.naming import Kind
from schemes.base import Peer, Values, widen


class Zfp(Peer):
    """zfp knows float32 and two dimensions of [tokens, channels]; its stream begins with a header."""

    def __init__(self, x: Values, kind: Kind, *, rate: int) -> None:
        super().__init__(x, kind)
        self._rate = rate
        self._floats = np.zeros((x.shape[0], x.shape[1] * x.shape[2]), np.float32)
        self._stream = b""

    def encode(self) -> None:
        widen(self.x.reshape(self._floats.shape), self._floats)
        self._stream = zfpy.compress_numpy(self._floats, rate=self._rate)

    def decode(self) -> None:
        self.out[...] = zfpy.decompress_numpy(self._stream).reshape(self.out.shape)

    @property
    def nbytes(self) -> int:
        return len(self._stream)
