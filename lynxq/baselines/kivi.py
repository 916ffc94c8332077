"""KIVI: keys per channel, values per token, the most recent tokens in full precision.

Source: Liu et al., *KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache* (ICML 2024, arXiv 2402.02750), and
the authors' code (github.com/jy-yuan/KIVI, ``quant/new_pack.py`` and ``models/llama_kivi.py``). Defaults are
theirs: groups of 32, a residual window of 128 tokens, and for a group::

    scale = (max - min) / (2^B - 1),    code = round(clamp((x - min) / scale, 0, 2^B - 1)),    x̂ = code · scale + min

What stays in full precision after a prefill of T tokens differs: of keys the last T mod 128 tokens (none if T is a
multiple of 128, all if T is below it), of values the last 128 tokens.

Gaps and deviations:

* The authors assert that groups divide the head dim; here the last group of a head can be shorter. With `window` 0
  so can the last group of keys.
* A group of equal values gives 0/0 in the authors' code, which is NaN; here it has scale 0 and decodes to its minimum.
* The authors' scales and minima have the dtype of the cache, float16 in their experiments. Here they are float16 for
  every cache, or float32 if a value is beyond float16's range, where theirs are infinite.
* The arithmetic is float64, rounded at the end; theirs is that of the cache's dtype.
* Codes are packed in bytes, without the padding to 32-bit words of their kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from lynxq import dtypes
from lynxq.arguments import choice, integer
from lynxq.baselines import codes as coding
from lynxq.baselines.base import F32, Context, Parts, Scheme
from lynxq.errors import ParamsError
from lynxq.naming import Kind


@dataclass(frozen=True)
class Kivi(Scheme):
    """KIVI with 2 or 4 bits.

    Parts: ``low`` and ``scale`` (float16, see the module), ``codes``, and ``recent``: the window in the tensor's own
    dtype.

    Parameters
    ----------
    bits : {2, 4}
        Bits of a code.
    window : int
        Length of the residual window; 0 quantizes all tokens.
    group : int
        Values of a group: tokens for keys, channels for values.
    kind : {"key", "value"}
        Which of the two to code; tensors of neither kind are coded as keys.

    Raises
    ------
    ParamsError
        If a parameter is out of its range, or the group does not divide the window.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import Kivi
    >>> keys = np.arange(64, dtype=np.float32).reshape(32, 2)
    >>> coded = Kivi(4, window=0).encode(keys, token_axis=0)
    >>> coded.parts["scale"].ravel().tolist(), coded.bits_per_element
    ([4.1328125, 4.1328125], 5.0)
    """

    bits: int
    window: int = 128
    group: int = 32
    kind: Kind = "key"

    paper = "KIVI, arXiv 2402.02750"

    def __post_init__(self) -> None:
        if self.bits not in (2, 4):
            raise ParamsError(f"bits must be 2 or 4, got {self.bits!r}")
        integer("group", self.group, 1, 1 << 20, ParamsError)
        integer("window", self.window, 0, 1 << 20, ParamsError)
        choice("kind", self.kind, Kind)
        if self.window % self.group:
            raise ParamsError(f"group must divide window {self.window}, got {self.group}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """Short name."""
        return f"kivi{self.bits}" if self.window else f"kivi{self.bits}-w0"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name for tables."""
        window = f"last {self.window} tokens exact" if self.window else "no exact window"
        return f"KIVI-{self.bits}, {window}"

    def for_kind(self, kind: Kind | None) -> Scheme:
        """The variant for keys or for values."""
        return self if (kind or "key") == self.kind else replace(self, kind=kind or "key")

    def _coded(self, tokens: int) -> int:
        """How many tokens are quantized; the others are the residual window."""
        if not self.window:
            return tokens
        return tokens - tokens % self.window if self.kind == "key" else max(tokens - self.window, 0)

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        coded = self._coded(context.block[1])
        axis = 1 if self.kind == "key" else 3
        old = values[:, :coded]
        found = coding.quantize(coding.split(old, axis, self.group), axis + 1, self.bits)
        codes = coding.join(found.codes, axis, old.shape[axis])
        recent = np.ascontiguousarray(values[:, coded:])
        return {
            "low": found.low,
            "scale": found.scale,
            "codes": coding.pack(codes, self.bits),
            "recent": dtypes.from_float32(recent, context.dtype),
        }

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        outer, tokens, heads, dim = context.block
        shape = (outer, self._coded(tokens), heads, dim)
        axis = 1 if self.kind == "key" else 3
        codes = coding.unpack(parts["codes"], self.bits, prod(shape)).reshape(shape)
        groups = coding.Linear(coding.split(codes, axis, self.group), parts["low"], parts["scale"])
        old = coding.join(coding.dequantize(groups), axis, shape[axis])
        return np.concatenate([old, dtypes.to_float32(parts["recent"], context.dtype)], axis=1)
