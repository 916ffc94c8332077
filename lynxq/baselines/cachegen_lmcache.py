"""CacheGen as LMCache ships it: absolute codes, entropy coded for each channel of a chunk of tokens.

Source: Liu et al., *CacheGen: KV Cache Compression and Streaming for Fast Large Language Model Serving* (SIGCOMM 2024,
arXiv 2310.07240), and the code
(github.com/LMCache/LMCache, ``storage_backend/serde/cachegen_encoder.py`` and
``v1/storage_backend/naive_serde/cachegen_basics.py``). It has none of the paper's differences between tokens. Of every
token the largest |x| over all channels of the layer is stored in the cache's dtype; values become
round(x · M / max) + M with M = bins/2 - 1; bins are 32 in layers 0 to 9 for keys and in layers 0 and 1 for values, else
16, and 32 everywhere in models of fewer than 10 layers. A chunk of 256 tokens is coded with a distribution of its own
for every channel: 33 cumulative frequencies of 16 bits each, which travel with the chunk and cost 2 bits per value.

Deviations:

* The arithmetic is float64; theirs has the dtype of the cache.
* Theirs has a byte string with a 32-bit length for each channel (0.125 bit per value and more); here one stream serves
  all. Their pickle frame is not counted either.
* Tokens of zeros give 0/0 in theirs; here they decode to zeros.
* A tensor whose layer is not known is coded like a late layer, with 16 bins.
* Arithmetic coding is done by the library constriction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lynxq.arguments import choice, integer
from lynxq.baselines import codes as coding
from lynxq.baselines import entropy
from lynxq.baselines.base import F32, Context, Parts, Scheme
from lynxq.errors import ParamsError
from lynxq.naming import Kind

#: Tokens of a chunk, and entries of a table of cumulative frequencies.
_CHUNK, _ENTRIES = 256, 33


@dataclass(frozen=True)
class CacheGenLMCache(Scheme):
    """CacheGen as LMCache ships it.

    Parts: ``peak`` of every token, ``cumulative`` frequencies (16 bits), and ``stream``.

    Parameters
    ----------
    kind : {"key", "value"}
        Which of the two to code; tensors of neither kind are coded as keys.
    layers : int
        Layers of the model.

    Raises
    ------
    ParamsError
        If a parameter is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import CacheGenLMCache
    >>> x = np.array([[15.0, -4.4, 0.0], [0.0, 0.0, 0.0]], np.float32)
    >>> CacheGenLMCache().encode(x, token_axis=0, layer=3).decode().tolist()
    [[15.0, -4.0, 0.0], [0.0, 0.0, 0.0]]
    """

    kind: Kind = "key"
    layers: int = 32

    name = "cachegen-lmcache"
    title = "CacheGen as in LMCache"
    paper = "CacheGen, arXiv 2310.07240"
    requires = "constriction"

    def __post_init__(self) -> None:
        choice("kind", self.kind, Kind)
        integer("layers", self.layers, 1, 1 << 20, ParamsError)

    def for_kind(self, kind: Kind | None) -> Scheme:
        """The variant for keys or for values."""
        return self if (kind or "key") == self.kind else replace(self, kind=kind or "key")

    def bins(self, layer: int | None) -> int:
        """Number of bins in a layer."""
        fine = 10 if self.kind == "key" else 2
        return 32 if self.layers < 10 or (layer is not None and layer < fine) else 16

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        outer, tokens, heads, dim = context.block
        most = self.bins(context.layer) // 2 - 1
        x = values.reshape(outer, tokens, heads * dim).astype(np.float64)
        codes, peak = coding.by_peak(x, most, context.dtype)
        codes += most
        starts = range(0, tokens, _CHUNK)
        cumulative = np.empty((outer, len(starts), heads * dim, _ENTRIES), np.uint16)
        for number, start in enumerate(starts):
            cumulative[:, number] = _cumulative(codes[:, start : start + _CHUNK])
        stream = entropy.encode(
            (codes[index, start : start + _CHUNK, channel], _model(cumulative[index, number, channel]))
            for index in range(outer)
            for number, start in enumerate(starts)
            for channel in range(heads * dim)
        )
        return {"peak": peak, "cumulative": cumulative, "stream": stream}

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        outer, tokens, heads, dim = context.block
        codes = np.empty((outer, tokens, heads * dim), np.int32)
        decoder = entropy.Decoder(parts["stream"])
        for index, tables in enumerate(parts["cumulative"]):
            for number, start in enumerate(range(0, tokens, _CHUNK)):
                chunk = codes[index, start : start + _CHUNK]
                for channel in range(heads * dim):
                    chunk[:, channel] = decoder.run(_model(tables[number, channel]), len(chunk))
        most = self.bins(context.layer) // 2 - 1
        values = coding.from_peak(codes - most, most, parts["peak"], context.dtype)
        return coding.to_float32(values).reshape(context.block)


def _cumulative(symbols: NDArray[np.int32]) -> NDArray[np.uint16]:
    """Cumulative frequencies of symbols (outer, tokens, channels), strictly increasing as LMCache makes them so.

    The last one stands for 2^16, and wraps around to 0 there, too.
    """
    counts = np.stack([(symbols == symbol).sum(axis=1) for symbol in range(_ENTRIES - 1)], axis=-1)
    shares = np.cumsum(counts, axis=-1) / symbols.shape[1]
    shares = np.concatenate([np.zeros_like(shares[..., :1]), shares], axis=-1)
    whole = np.rint(shares * ((1 << 16) - (_ENTRIES - 1))).astype(np.int64) + np.arange(_ENTRIES)
    wrapped: NDArray[np.uint16] = (whole & 0xFFFF).astype(np.uint16)
    return wrapped


def _model(cumulative: NDArray[np.uint16]) -> object:
    ends = cumulative.astype(np.int64)
    ends[-1] = 1 << 16
    return entropy.table(np.diff(ends))
