"""INT8 and INT4: linear quantization, with one scale for a whole tensor or for each of many groups.

Source: equation 4 in the review of the Lynx paper (arXiv 2607.01831)::

    Q(x) = round(x / S + Z),    S = (x_max - x_min) / (2^B - 1)

Gaps, and what we do. "When these outliers set the global scale S" tells the paper's granularity: one scale for the
tensor, so :class:`PerTensorInteger` is the variant to compare with the paper's INT8 and INT4. Z is not given: we take
-x_min / S, not rounded to an integer, so that the codes 0 and 2^B - 1 are x_min and x_max exactly. Nor is it said how
S and Z are stored: per tensor we store x_min and x_max in float32, which is exact, and both sides compute S and Z from
these. A constant tensor has S = 0: its codes are 0, and it decodes exactly.

:class:`GroupedInteger` is the same formula with a scale for each token, each channel, or each group of channels inside
a head: what serving systems call INT8 and INT4. It stores x_min and S of every group in float16, and the encoder works
with these.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from lynxq.baselines import codes as coding
from lynxq.baselines.base import F32, Context, Parts, Scheme
from lynxq.errors import ParamsError

#: Values that are in float64 at once; even, so that pairs of 4-bit codes stay together.
_PIECE = 1 << 18


@dataclass(frozen=True)
class PerTensorInteger(Scheme):
    """Linear quantization to integers with one scale and one zero point for the tensor.

    Parts: ``range`` (x_min, x_max: 8 bytes) and ``codes``, in C order; of two 4-bit codes in a byte the first is
    the low one.

    Parameters
    ----------
    bits : {4, 8}
        Bits of a code.

    Raises
    ------
    ParamsError
        For another number of bits.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import PerTensorInteger
    >>> coded = PerTensorInteger(4).encode(np.array([-1.0, 0.0, 0.25, 2.0], np.float32), token_axis=0)
    >>> coded.parts["codes"].tolist()  # 0, 5, 6, 15
    [80, 246]
    >>> coded.decode().tolist()
    [-1.0, 0.0, 0.20000000298023224, 2.0]
    """

    bits: int

    paper = "Lynx, arXiv 2607.01831"

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ParamsError(f"bits must be 4 or 8, got {self.bits!r}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """Short name."""
        return f"int{self.bits}"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name for tables."""
        return f"INT{self.bits} per tensor"

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        del context
        flat = values.reshape(-1)
        low, high = (flat.min(), flat.max()) if flat.size else (np.float32(0), np.float32(0))
        scale = self._scale(low, high)
        codes = np.zeros(flat.size, np.uint8)
        if scale:
            for start in range(0, flat.size, _PIECE):
                piece = flat[start : start + _PIECE].astype(np.float64)
                # x/S + Z with Z = -x_min/S, written so that x_min gives 0 exactly.
                codes[start : start + _PIECE] = np.rint((piece - float(low)) / scale)
        return {"range": np.array([low, high], np.float32), "codes": coding.pack(codes, self.bits)}

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        low, high = parts["range"]
        codes = coding.unpack(parts["codes"], self.bits, prod(context.block))
        # All values that a code can stand for: 256 at most, so that float64 costs nothing.
        points = float(low) + np.arange(1 << self.bits) * self._scale(low, high)
        table = np.clip(points, low, high).astype(np.float32)
        values: F32 = table[codes].reshape(context.block)
        return values

    def _scale(self, low: np.float32, high: np.float32) -> float:
        return (float(high) - float(low)) / ((1 << self.bits) - 1)


@dataclass(frozen=True)
class GroupedInteger(Scheme):
    """Linear quantization to integers with a scale and a smallest value for every group.

    Parts: ``low`` and ``scale``, float16 (float32 if one of them is beyond float16's range), and ``codes``.

    Parameters
    ----------
    bits : {4, 8}
        Bits of a code.
    granularity : "token", "channel" or int
        What makes a group: all channels of a token, all tokens of a channel, or so many channels of a token inside
        one head; the last group of a head can be shorter.

    Raises
    ------
    ParamsError
        For another number of bits, or another granularity.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import GroupedInteger
    >>> coded = GroupedInteger(4, "token").encode(np.array([[0, 1, 15], [0, 200, 3000]], np.float32), token_axis=0)
    >>> coded.parts["scale"].ravel().tolist(), coded.decode().tolist()
    ([1.0, 200.0], [[0.0, 1.0, 15.0], [0.0, 200.0, 3000.0]])
    """

    bits: int
    granularity: Literal["token", "channel"] | int

    paper = "-"

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ParamsError(f"bits must be 4 or 8, got {self.bits!r}")
        if self.granularity not in ("token", "channel") and not (
            isinstance(self.granularity, int) and self.granularity > 0
        ):
            raise ParamsError(f"granularity must be 'token', 'channel' or a number, got {self.granularity!r}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """Short name."""
        suffix = self.granularity if isinstance(self.granularity, str) else f"g{self.granularity}"
        return f"int{self.bits}-{suffix}"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name for tables."""
        group = self.granularity if isinstance(self.granularity, str) else f"{self.granularity} channels"
        return f"INT{self.bits} per {group}"

    def _plan(self, context: Context) -> tuple[tuple[int, int, int, int], int, int]:
        """The block as the grouping sees it, the axis of groups, and their size."""
        outer, tokens, heads, dim = context.block
        if self.granularity == "channel":
            return context.block, 1, max(tokens, 1)
        if self.granularity == "token":
            return (outer, tokens, 1, heads * dim), 3, max(heads * dim, 1)
        return context.block, 3, int(self.granularity)

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        block, axis, size = self._plan(context)
        found = coding.quantize(coding.split(values.reshape(block), axis, size), axis + 1, self.bits)
        codes = coding.join(found.codes, axis, block[axis])
        return {"low": found.low, "scale": found.scale, "codes": coding.pack(codes, self.bits)}

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        block, axis, size = self._plan(context)
        codes = coding.unpack(parts["codes"], self.bits, prod(block)).reshape(block)
        groups = coding.Linear(coding.split(codes, axis, size), parts["low"], parts["scale"])
        return coding.join(coding.dequantize(groups), axis, block[axis]).reshape(context.block)
