"""INT8 and INT4 with one scale for a whole tensor: the linear quantization that the Lynx paper compares with.

Source: equation 4 in the review of the Lynx paper (arXiv 2607.01831)::

    Q(x) = round(x / S + Z),    S = (x_max - x_min) / (2^B - 1)

Gaps, and what we do. The granularity follows from "when these outliers set the global scale S": one for the
tensor. Z is not given: we take -x_min / S, not rounded to an integer, so that the codes 0 and 2^B - 1 are x_min
and x_max exactly. Nor is it said how S and Z are stored: we store x_min and x_max in float32, which is exact, and
both sides compute S and Z from these. A constant tensor has S = 0: its codes are 0, and it decodes exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from lynxq.baselines.base import Parts, Scheme
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

    def compress(self, values: NDArray[np.float32], token_axis: int) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        del token_axis
        flat = values.reshape(-1)
        low, high = (flat.min(), flat.max()) if flat.size else (np.float32(0), np.float32(0))
        scale = self._scale(low, high)
        codes = np.zeros(flat.size, np.uint8)
        if scale:
            for start in range(0, flat.size, _PIECE):
                piece = flat[start : start + _PIECE].astype(np.float64)
                # x/S + Z with Z = -x_min/S, written so that x_min gives 0 exactly.
                codes[start : start + _PIECE] = np.rint((piece - float(low)) / scale)
        return {"range": np.array([low, high], np.float32), "codes": codes if self.bits == 8 else _pack(codes)}

    def restore(self, parts: Parts, shape: tuple[int, ...], token_axis: int) -> NDArray[np.float32]:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        del token_axis
        size = prod(shape)
        low, high = parts["range"]
        codes = parts["codes"] if self.bits == 8 else _unpack(parts["codes"], size)
        # All values that a code can stand for: 256 at most, so that float64 costs nothing.
        points = float(low) + np.arange(1 << self.bits) * self._scale(low, high)
        table = np.clip(points, low, high).astype(np.float32)
        values: NDArray[np.float32] = table[codes].reshape(shape)
        return values

    def _scale(self, low: np.float32, high: np.float32) -> float:
        return (float(high) - float(low)) / ((1 << self.bits) - 1)


def _pack(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    packed = np.zeros(-(-codes.size // 2), np.uint8)
    packed[:] = codes[::2]
    packed[: codes.size // 2] |= codes[1::2] << np.uint8(4)
    return packed


def _unpack(packed: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    codes = np.empty(2 * packed.size, np.uint8)
    codes[::2] = packed & np.uint8(15)
    codes[1::2] = packed >> np.uint8(4)
    return codes[:size]
