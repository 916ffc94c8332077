"""CacheGen with the token-anchored differences of its paper.

Source: Liu et al., *CacheGen: KV Cache Compression and Streaming for Fast Large Language Model Serving* (SIGCOMM 2024,
arXiv 2310.07240). Arithmetic coding is done by the library constriction.

Tokens are cut into groups of ten; the first of a group, the anchor token, is coded with 8 bits, the others
as differences from it (as it will be decoded), with bins of 0.5, 1 and 1.5 in the first, middle and last third of the
layers; all codes are arithmetically coded with a distribution for each channel of each layer. Gaps, and what we do:

* What the bins are multiples of is not said. We take the root mean square of a channel's differences, stored in
  float32. The authors' repositories hold no code for differences to compare with.
* "Vectorwise" 8-bit quantization of anchors: we take one scale for a token over all channels, its largest |x|.
* The paper profiles distributions offline for a model and sends none. To profile nothing and count everything we store
  them: for differences the frequencies between the smallest and the largest symbol of a channel, for the few anchors
  mean and deviation of a normal distribution. `docs/baselines.md` shows how many bits these take.
* A tensor whose layer is not known is coded like a layer of the middle third.
* Group and bins are quoted second-hand: we had no copy of the paper to check them against.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynxq.arguments import integer
from lynxq.baselines import codes as coding
from lynxq.baselines import entropy
from lynxq.baselines.base import F32, Context, Parts, Scheme
from lynxq.errors import ParamsError

#: Largest code of an anchor token, and smallest deviation of the normal distribution that models these codes.
_ANCHOR, _NARROWEST = 127, 0.05


@dataclass(frozen=True)
class CacheGen(Scheme):
    """CacheGen with the token-anchored differences of the paper.

    Parts: ``peak`` of every anchor token and ``normal``, mean and deviation of the anchor codes of a channel (float16);
    ``size``, root mean square of the differences of a channel (float32), ``lowest`` and ``width``, smallest symbol and
    number of symbols of a channel, ``frequencies`` of these symbols; and ``stream``.

    Parameters
    ----------
    layers : int
        Layers of the model.
    group : int
        Tokens of a group.
    bins : tuple of float
        Bin sizes in the first, the middle and the last third of the layers.

    Raises
    ------
    ParamsError
        If a parameter is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import CacheGen
    >>> x = np.random.default_rng(0).standard_normal((2048, 2, 64)).astype(np.float32).cumsum(axis=0)
    >>> CacheGen().encode(x, token_axis=0, layer=0)
    CodedBaseline(cachegen, shape=(2048, 2, 64), dtype=float32, 3.60 bits per element)
    """

    layers: int = 32
    group: int = 10
    bins: tuple[float, float, float] = (0.5, 1.0, 1.5)

    name = "cachegen"
    title = "CacheGen, token-anchored differences"
    paper = "CacheGen, arXiv 2310.07240"
    requires = "constriction"

    def __post_init__(self) -> None:
        integer("layers", self.layers, 1, 1 << 20, ParamsError)
        integer("group", self.group, 1, 1 << 20, ParamsError)
        if len(self.bins) != 3 or not all(0 < size < np.inf for size in self.bins):
            raise ParamsError(f"bins must be three positive numbers, got {self.bins!r}")

    def _bin(self, layer: int | None) -> float:
        return self.bins[1 if layer is None else min(3 * layer // self.layers, 2)]

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        outer, tokens, heads, dim = context.block
        x = values.reshape(outer, tokens, heads * dim).astype(np.float64)
        anchors, peak = coding.by_peak(x[:, :: self.group], _ANCHOR, context.dtype)
        differences = (x - self._anchors(anchors, peak, context))[:, self._follows(tokens)]
        size = np.zeros((outer, heads * dim), np.float32)
        normal = np.zeros((outer, heads * dim, 2), np.float16)
        if differences.shape[1]:
            size = coding.to_float32(np.sqrt(np.square(differences).mean(axis=1)))
        if tokens:
            normal = np.stack([anchors.mean(axis=1), anchors.std(axis=1)], axis=2).astype(np.float16)
        step = size[:, None].astype(np.float64) * self._bin(context.layer)
        codes = np.rint(np.divide(differences, step, out=np.zeros_like(differences), where=step > 0)).astype(np.int32)
        # Where there is nothing to code, a channel has one symbol, which needs no coding.
        seen = codes if codes.shape[1] else np.zeros((outer, 1, heads * dim), np.int32)
        lowest, highest = seen.min(axis=1), seen.max(axis=1)
        codes -= lowest[:, None]
        counts = np.zeros((0,), np.uint16 if codes.shape[1] < 1 << 16 else np.uint32)
        tables = [
            np.bincount(codes[index, :, channel], minlength=highest[index, channel] - lowest[index, channel] + 1)
            for index, channel in np.ndindex(outer, heads * dim)
        ]
        runs: list[entropy.Run] = []
        for (index, channel), table in zip(np.ndindex(outer, heads * dim), tables, strict=True):
            runs.append((anchors[index, :, channel], _normal(normal[index, channel])))
            if len(table) > 1:
                runs.append((codes[index, :, channel], entropy.table(table)))
        return {
            "peak": peak,
            "normal": normal,
            "size": size,
            "lowest": lowest,
            "width": (highest - lowest + 1).astype(np.uint16),
            "frequencies": np.concatenate([counts, *tables]).astype(counts.dtype),
            "stream": entropy.encode(runs),
        }

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        outer, tokens, heads, dim = context.block
        follows = self._follows(tokens)
        anchors = np.zeros((outer, tokens - np.count_nonzero(follows), heads * dim), np.int32)
        codes = np.zeros((outer, np.count_nonzero(follows), heads * dim), np.int32)
        decoder, end = entropy.Decoder(parts["stream"]), 0
        for index, channel in np.ndindex(outer, heads * dim):
            anchors[index, :, channel] = decoder.run(_normal(parts["normal"][index, channel]), anchors.shape[1])
            start, end = end, end + int(parts["width"][index, channel])
            if end - start > 1:
                model = entropy.table(parts["frequencies"][start:end])
                codes[index, :, channel] = decoder.run(model, codes.shape[1])
        codes += parts["lowest"][:, None]
        values = self._anchors(anchors, parts["peak"], context)
        values[:, follows] += codes * (parts["size"][:, None].astype(np.float64) * self._bin(context.layer))
        return coding.to_float32(values).reshape(context.block)

    def _follows(self, tokens: int) -> NDArray[np.bool_]:
        """Which tokens are coded as differences."""
        return np.arange(tokens) % self.group > 0

    def _anchors(self, codes: NDArray[np.int32], peak: NDArray[Any], context: Context) -> NDArray[np.float64]:
        """For every token the decoded anchor token of its group."""
        values = coding.from_peak(codes, _ANCHOR, peak, context.dtype)
        return np.repeat(values, self.group, axis=1)[:, : context.block[1]]


def _normal(stored: NDArray[np.float16]) -> Any:
    return entropy.gaussian(float(stored[0]), max(float(stored[1]), _NARROWEST), _ANCHOR)
