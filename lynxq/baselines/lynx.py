"""Lynx-INT4 and Lynx-INT8, the two ablations of the Lynx paper.

Source: the reviews of arXiv 2607.01831: "Lynx-INT4 (quantize only, no split-stream), Lynx-INT8 (standard INT8 split
into Anchor+Residual)". Nothing more is said of them. Lynx itself is the method ``paper``, see
:meth:`lynxq.Params.paper`.

**Lynx-INT4** is read as Algorithm 1, stages 1 to 3, straight to 4 bits: per-channel range of a page of 256 tokens, mean
and largest deviation of chunks of 32, α-law, and the sign-aware map of stage 4 with its 8 + 8 symbols::

    I = round(ln(1 + α|x|) / ln(1 + α) · 7),    Q = I if x >= 0 else -I - 1

Gaps: α is "255 (a typical value)" in one place and 100 in another; we take 255. The precision of metadata is not given;
the review counts them "in float32" (2.25 bits per value), and so do we. ε is not given: a constant run or chunk has
scale 0 and decodes exactly. Short last pages and chunks are coded with their true length.

**Lynx-INT8** is read as the INT8 of the paper's tables (one scale for the tensor, :class:`PerTensorInteger`) whose high
four bits are the anchor and whose low four bits are the residual: the full decode is that of INT8 at its bits. The
anchor alone is a row of its own; it decodes to the middle of the 16 codes that share their high bits, a choice of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lynxq.arguments import choice
from lynxq.baselines import codes as coding
from lynxq.baselines.base import F32, Context, Parts, Scheme
from lynxq.baselines.integer import PerTensorInteger
from lynxq.errors import ParamsError

_PAGE, _CHUNK, _LEVELS = 256, 32, 7


@dataclass(frozen=True)
class LynxInt4(Scheme):
    """Algorithm 1 of the Lynx paper with 4 bits and one stream.

    Parts, in float32: ``page_min`` and ``page_scale`` of every channel and page, ``mean`` and ``deviation`` of every
    chunk, relative to the page's range; and ``codes``.

    Parameters
    ----------
    alpha : float
        Strength of the companding, positive.

    Raises
    ------
    ParamsError
        If `alpha` is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import LynxInt4
    >>> coded = LynxInt4().encode(np.linspace(-1, 1, 512, dtype=np.float32), token_axis=0)
    >>> coded.bits_per_element
    6.25
    """

    alpha: float = 255.0

    name = "lynx-int4"
    title = "Lynx-INT4, one stream"
    paper = "Lynx, arXiv 2607.01831"

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise ParamsError(f"alpha must be positive, got {self.alpha!r}")

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        tokens = context.block[1]
        exact = values.astype(np.float64)
        pages = coding.split(exact, 1, _PAGE)
        low = pages.min(axis=2)
        page = {"page_min": low.astype(np.float32), "page_scale": coding.to_float32(pages.max(axis=2) - low)}
        x = _over(exact - _expand(page["page_min"], _PAGE, tokens), _expand(page["page_scale"], _PAGE, tokens))
        starts = np.arange(0, tokens, _CHUNK)
        counts = np.diff(starts, append=tokens).reshape(1, -1, 1, 1)
        mean = (np.add.reduceat(x, starts, axis=1) / counts).astype(np.float32)
        x -= _expand(mean, _CHUNK, tokens)
        deviation = np.abs(coding.split(x, 1, _CHUNK)).max(axis=2).astype(np.float32)
        unit = _over(x, _expand(deviation, _CHUNK, tokens))
        level = np.rint(np.log1p(self.alpha * np.minimum(np.abs(unit), 1.0)) / np.log1p(self.alpha) * _LEVELS)
        codes = np.where(unit >= 0, level, -level - 1).astype(np.int8).view(np.uint8) & np.uint8(15)
        return {**page, "mean": mean, "deviation": deviation, "codes": coding.pack(codes, 4)}

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        tokens = context.block[1]
        codes = coding.unpack(parts["codes"], 4, prod(context.block)).reshape(context.block)
        positive = np.expm1(np.log1p(self.alpha) * np.arange(_LEVELS + 1) / _LEVELS) / self.alpha
        x = np.concatenate([positive, -positive[::-1]])[codes]
        x = x * _expand(parts["deviation"], _CHUNK, tokens) + _expand(parts["mean"], _CHUNK, tokens)
        return coding.to_float32(
            x * _expand(parts["page_scale"], _PAGE, tokens) + _expand(parts["page_min"], _PAGE, tokens)
        )


def _expand(per_run: F32, size: int, tokens: int) -> NDArray[np.float64]:
    """An entry for every token from an entry for every run of tokens."""
    return np.repeat(per_run.astype(np.float64), size, axis=1)[:, :tokens]


def _over(x: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quotient; 0 where the scale is 0."""
    return np.divide(x, scale, out=np.zeros_like(x), where=scale > 0)


@dataclass(frozen=True)
class LynxInt8(Scheme):
    """INT8 with one scale for the tensor, split into an anchor and a residual of 4 bits each.

    Parts: ``range`` (x_min, x_max in float32), ``anchor`` and, unless the tier is "anchor", ``residual``.

    Parameters
    ----------
    tier : {"full", "anchor"}
        What is stored and decoded.

    Raises
    ------
    ParamsError
        For another tier.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import LynxInt8
    >>> x = np.array([0, 8, 17, 255], np.float32)
    >>> [LynxInt8(tier).encode(x, token_axis=0).decode().tolist() for tier in ("full", "anchor")]
    [[0.0, 8.0, 17.0, 255.0], [7.5, 7.5, 23.5, 247.5]]
    """

    tier: Literal["full", "anchor"] = "full"

    paper = "Lynx, arXiv 2607.01831"

    def __post_init__(self) -> None:
        choice("tier", self.tier, Literal["full", "anchor"])

    @property
    def name(self) -> str:  # type: ignore[override]
        """Short name."""
        return "lynx-int8" if self.tier == "full" else "lynx-int8-anchor"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name for tables."""
        return "Lynx-INT8, anchor and residual" if self.tier == "full" else "Lynx-INT8, the anchor alone"

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        whole = PerTensorInteger(8).compress(values, context)
        parts = {"range": whole["range"], "anchor": coding.pack(whole["codes"] >> np.uint8(4), 4)}
        if self.tier == "full":
            parts["residual"] = coding.pack(whole["codes"] & np.uint8(15), 4)
        return parts

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        size = prod(context.block)
        anchor = coding.unpack(parts["anchor"], 4, size)
        if self.tier == "full":
            codes = (anchor << np.uint8(4)) | coding.unpack(parts["residual"], 4, size)
            return PerTensorInteger(8).restore({"range": parts["range"], "codes": codes}, context)
        low, high = (float(limit) for limit in parts["range"])
        table = coding.to_float32(low + (np.arange(16) * 16 + 7.5) * ((high - low) / 255))
        values: F32 = table[anchor].reshape(context.block)
        return values
