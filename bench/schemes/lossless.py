"""General compressors on the bytes of bfloat16, and numcodecs' rounding before one.

One thread, and level 1 of zstd everywhere: higher levels take several times as long on such data, for up to 15 %
fewer bits.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from lynxq.naming import Kind
from schemes.base import Peer, Values, widen


class _Bytes(Peer):
    """What all have in common: a stream of bytes. Libraries are imported when one is made."""

    def __init__(self, x: Values, kind: Kind) -> None:
        super().__init__(x, kind)
        self._words, self._target = x.view(np.uint16).reshape(-1), self.out.view(np.uint16).reshape(-1)
        self._stream: Any = b""
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None: ...

    @property
    def nbytes(self) -> int:
        return len(self._stream)


class Zstd(_Bytes):
    """zstd on the bytes as they are."""

    def _prepare(self) -> None:
        import zstandard

        self._encoder, self._decoder = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()

    def encode(self) -> None:
        self._stream = self._encoder.compress(self._words)

    def decode(self) -> None:
        with self._decoder.stream_reader(self._stream) as reader:
            reader.readinto(self._target.view(np.uint8))


class Blosc2(_Bytes):
    """blosc2: zstd after a shuffle of the bytes."""

    def _prepare(self) -> None:
        import blosc2

        self._library = blosc2

    def encode(self) -> None:
        codec = self._library.Codec.ZSTD
        self._stream = self._library.compress2(self._words, codec=codec, clevel=1, typesize=2, nthreads=1)

    def decode(self) -> None:
        self._library.decompress2(self._stream, dst=self._target, nthreads=1)


class Pcodec(_Bytes):
    """pcodec's defaults, on the words as integers: it knows no bfloat16."""

    def _prepare(self) -> None:
        import pcodec

        self._library, self._settings = pcodec.standalone, pcodec.ChunkConfig()

    def encode(self) -> None:
        self._stream = self._library.simple_compress(self._words, self._settings)

    def decode(self) -> None:
        self._library.simple_decompress_into(self._stream, self._target)


class NumcodecsBlosc(_Bytes):
    """numcodecs' Blosc: zstd after a shuffle of the bytes."""

    def _prepare(self) -> None:
        import numcodecs
        import numcodecs.blosc

        numcodecs.blosc.use_threads = False
        self._codec = numcodecs.Blosc(cname="zstd", clevel=1, shuffle=numcodecs.Blosc.SHUFFLE)

    def encode(self) -> None:
        self._stream = self._codec.encode(self._words)

    def decode(self) -> None:
        self._codec.decode(self._stream, out=self._target)


class NumcodecsBitRound(NumcodecsBlosc):
    """numcodecs' BitRound to 3 bits of mantissa, what fp8 has, then its Blosc on the upper halves of the words."""

    def _prepare(self) -> None:
        super()._prepare()
        import numcodecs

        self._rounding = numcodecs.BitRound(keepbits=3)
        self._floats = np.zeros(self._words.size, np.float32)

    def encode(self) -> None:
        widen(self._words, self._floats)
        rounded = np.asarray(self._rounding.encode(self._floats)).view(np.uint16)[1::2]
        self._stream = self._codec.encode(np.ascontiguousarray(rounded))
