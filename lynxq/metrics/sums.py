"""Squared errors, norms and what is built of them. The rules for corner cases are in :mod:`lynxq.metrics`."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lynxq.arrays import Array
from lynxq.encoded import Encoded
from lynxq.errors import ShapeError
from lynxq.layout import Tier
from lynxq.metrics import pieces
from lynxq.metrics.pieces import Floats


@dataclass(frozen=True)
class ErrorSums:
    """What errors of reconstructions add up to; add them to pool over tensors without holding these.

    Parameters
    ----------
    squared_error : float
        Sum of (x - x̂)².
    squared_norm : float
        Sum of x².
    centred_norm : float
        Sum of squared distances from the mean over tokens of each (outer, channel); NaN if not measured.
    max_error : float
        Largest |x - x̂|.
    elements : int
        Number of values.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.metrics import ErrorSums
    >>> x = np.array([[1.0, 10.0], [3.0, 14.0]])
    >>> sums = ErrorSums.of(x, x + 1, token_axis=0)
    >>> sums
    ErrorSums(squared_error=4.0, squared_norm=306.0, centred_norm=10.0, max_error=1.0, elements=4)
    >>> (sums + ErrorSums.of(x, x, token_axis=0)).centred_vnmse
    0.2
    """

    squared_error: float = 0.0
    squared_norm: float = 0.0
    centred_norm: float = 0.0
    max_error: float = 0.0
    elements: int = 0

    @classmethod
    def of(cls, x: Array, x_hat: Array, *, token_axis: int | None = None) -> ErrorSums:
        """Measure one tensor.

        Parameters
        ----------
        x, x_hat : array, shape (outer…, tokens, inner…)
            The tensor and its reconstruction.
        token_axis : int, optional
            The axis of tokens; None leaves out `centred_norm`, and with it a pass over `x`.

        Raises
        ------
        ShapeError
            If the shapes differ, or there is no such axis.
        DTypeError
            If an argument is not an array of floats on the CPU.
        NonFiniteError
            If `x` holds NaN or infinity.
        """
        true, near = pieces.floats("x", x), pieces.floats("x_hat", x_hat)
        shape = pieces.same_shape("x_hat", near, "x", true)
        total = cls(centred_norm=math.nan) if token_axis is None else cls()
        with np.errstate(all="ignore"):
            for block in _blocks(shape, token_axis):
                mean = None if token_axis is None else _mean(true, block, token_axis % len(shape))
                for index in block:
                    total += _piece_sums(true, near, index, mean)
        return total

    def __add__(self, other: ErrorSums) -> ErrorSums:
        if not isinstance(other, ErrorSums):
            return NotImplemented
        return ErrorSums(
            self.squared_error + other.squared_error,
            self.squared_norm + other.squared_norm,
            self.centred_norm + other.centred_norm,
            max(self.max_error, other.max_error),
            self.elements + other.elements,
        )

    @property
    def vnmse(self) -> float:
        """Squared error over squared norm."""
        return pieces.ratio(self.squared_error, self.squared_norm)

    @property
    def centred_vnmse(self) -> float:
        """Squared error over the squared distance from the per-channel means; NaN if not measured."""
        return pieces.ratio(self.squared_error, self.centred_norm)


def vnmse(x: Array, x_hat: Array) -> float:
    """Vector-normalized mean squared error ‖x - x̂‖² / ‖x‖², sums over the whole tensor.

    Parameters
    ----------
    x, x_hat : array
        The tensor and its reconstruction, of one shape.

    Returns
    -------
    float
        0 for a perfect reconstruction, 1 for one of zeros. 0/0 is 0, x/0 and a non-finite `x_hat` infinity.

    Raises
    ------
    ShapeError, DTypeError, NonFiniteError
        As for :meth:`ErrorSums.of`.

    Notes
    -----
    The metric of Table 3 of the Lynx paper (arXiv 2607.01831), there taken of attention outputs: for that see
    :func:`attention_output_error`.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.metrics import vnmse
    >>> vnmse(np.array([3.0, 4.0]), np.array([3.0, 3.0]))
    0.04
    """
    return ErrorSums.of(x, x_hat).vnmse


def centred_vnmse(x: Array, x_hat: Array, *, token_axis: int) -> float:
    """Squared error over the variance around the mean of each channel.

    Unlike :func:`vnmse` it does not change when a channel is shifted by a constant.

    Parameters
    ----------
    x, x_hat : array, shape (outer…, tokens, inner…)
        The tensor and its reconstruction.
    token_axis : int
        The axis of tokens; each index of the others has a mean of its own.

    Returns
    -------
    float
        1 for a reconstruction by the means. 0/0 is 0; x/0 (a single token, or constant channels) and a
        non-finite `x_hat` give infinity.

    Raises
    ------
    ShapeError, DTypeError, NonFiniteError
        As for :meth:`ErrorSums.of`.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.metrics import centred_vnmse
    >>> centred_vnmse(np.array([201.0, 203.0]), np.array([201.0, 202.0]), token_axis=0)
    0.5
    """
    return ErrorSums.of(x, x_hat, token_axis=operator.index(token_axis)).centred_vnmse


def max_error(x: Array, x_hat: Array) -> float:
    """Largest |x - x̂|, in the unit of the values; 0 for empty tensors.

    Parameters and errors are those of :func:`vnmse`; a non-finite `x_hat` gives infinity.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.metrics import max_error
    >>> max_error(np.array([3.0, 4.0]), np.array([3.5, 4.0]))
    0.5
    """
    return ErrorSums.of(x, x_hat).max_error


def bits_per_element(encoded: Encoded, tier: Tier = "full") -> float:
    """Bits per valid value that a decode needs, counting every byte of its streams.

    Parameters
    ----------
    encoded : Encoded
    tier : {"anchor", "full"}
        The anchor stream alone, or both streams.

    Returns
    -------
    float
        Codes, ranges, centres, scales, sink tokens and alignment; 0 for an empty tensor. What describes the
        tensor (shape, dtype, parameters) is not in the streams.

    Raises
    ------
    MissingResidualError
        If `tier` is "full" and there is no residual stream.

    Examples
    --------
    >>> import numpy as np, lynxq
    >>> from lynxq.metrics import bits_per_element
    >>> encoded = lynxq.encode(np.ones((512, 2, 64), np.float32), token_axis=0)
    >>> bits_per_element(encoded, "full") - bits_per_element(encoded, "anchor")
    3.96875
    """
    if encoded.residual_for(tier) is None:
        return encoded.anchor_only().bits_per_element
    return encoded.bits_per_element


def _blocks(shape: tuple[int, ...], token_axis: int | None) -> Iterator[list[tuple[slice, ...]]]:
    """Pieces in blocks, each of which holds all tokens of some (outer, channel) columns."""
    if token_axis is None:
        for piece in pieces.cut(shape, pieces.PIECE):
            yield [piece]
        return
    if not -len(shape) <= token_axis < len(shape):
        raise ShapeError(f"token_axis must be an axis of shape {shape}, got {token_axis}")
    axis = token_axis % len(shape)
    others = shape[:axis] + shape[axis + 1 :]
    # A quarter of a piece for the means, so that one piece covers several tokens.
    for columns in pieces.cut(others, max(pieces.PIECE // 4, 1)):
        width = math.prod(len(range(*s.indices(n))) for s, n in zip(columns, others, strict=True))
        step = max(pieces.PIECE // width, 1)
        yield [
            (*columns[:axis], slice(start, min(start + step, shape[axis])), *columns[axis:])
            for start in range(0, shape[axis], step)
        ]


def _mean(array: Array, block: list[tuple[slice, ...]], axis: int) -> Floats:
    """Means over tokens of a block's columns."""
    total: Any = 0.0
    first: Any = 0.0
    for index in block:
        piece = pieces.load(array, index)
        if index is block[0]:
            first = piece.take([0], axis)
        # Relative to the first token, so that the mean of equal values is that value exactly.
        total = total + (piece - first).sum(axis, keepdims=True)
    mean: Floats = first + total / max(array.shape[axis], 1)
    return mean


def _piece_sums(true: Array, near: Array, index: tuple[slice, ...], mean: Floats | None) -> ErrorSums:
    x = pieces.load(true, index)
    if not np.isfinite(x).all():
        pieces.require_finite(true)
    x_hat = pieces.load(near, index)
    error = np.abs(x_hat - x)
    finite = bool(np.isfinite(x_hat).all())
    return ErrorSums(
        float(np.square(error).sum()) if finite else math.inf,
        float(np.square(x).sum()),
        math.nan if mean is None else float(np.square(x - mean).sum()),
        float(error.max()) if finite else math.inf,
        x.size,
    )
