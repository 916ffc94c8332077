"""From values to levels: a candidate from a short polynomial, exact wherever it is not surely right.

The level of t is the number of thresholds at or below t. The candidate is a fixed-point number, levels in its
upper half and a 16-bit fraction below; rounding it down gives the level unless the fraction is so small that the
error of the candidate could have carried it over a threshold (`margin`, see :mod:`lynxq.backends.cpu.tables`).
Rows report their smallest fraction; a row with a doubtful one is gone over again, and its doubtful values are
compared with the thresholds themselves.

A row of codes holds the level in its lower 7 bits and the sign in the highest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lynxq.backends.cpu.kernels.jit import bits_of, float_of, fused, inner

#: How a candidate is computed: a polynomial in t, or one in the mantissa of 1 + αt, for strong companding.
DIRECT, LOGARITHM = 0, 1

_ONE, _ZERO = np.float32(1), np.float32(0)
_FRACTION = np.int32(0xFFFF)
_SIGN = np.int32(128)
#: Lanes whose doubts are looked at together, and lanes that are gone over again together.
_SEGMENT, _BLOCK = 256, 32


@inner
def _direct(t, c):
    high = fused(fused(fused(c[6], t, c[5]), t, c[4]), t, c[3])
    return fused(fused(fused(high, t, c[2]), t, c[1]), t, c[0])


@inner
def _logarithm(t, c):
    bits = bits_of(np.float32(_ONE + np.float32(c[8] * t)))
    exponent = np.float32(np.int32(np.int32(np.uint32(bits >> np.uint32(23))) - np.int32(127)))
    m = float_of(np.uint32(np.uint32(bits & np.uint32(0x7FFFFF)) | np.uint32(0x3F800000))) - np.float32(1.5)
    high = fused(fused(fused(fused(c[7], m, c[6]), m, c[5]), m, c[4]), m, c[3])
    return fused(c[9], exponent, fused(fused(fused(high, m, c[2]), m, c[1]), m, c[0]))


@inner
def _exact(distance, reciprocal, thresholds, candidate):
    """The code of one value, by comparison with the thresholds next to a candidate."""
    t = np.float32(abs(distance) * reciprocal)
    level = min(np.int64(candidate & np.uint8(127)), thresholds.size)
    while level < thresholds.size and t >= thresholds[level]:
        level += 1
    while level > 0 and t < thresholds[level - 1]:
        level -= 1
    return np.uint8(level | (128 if distance < _ZERO else 0))


@inner
def _code(fixed, distance):
    """Level and sign."""
    return np.uint8(np.int32(fixed >> np.int32(16)) | (_SIGN if distance < _ZERO else np.int32(0)))


def make_codes(widen: Any) -> Any:
    """Make the function that turns values of an element type into codes."""

    @inner
    def fill_row(form, x, mu, reciprocal, c, out):
        """Candidates of a row with a centre and a scale for every value; returns the smallest fraction."""
        smallest = _FRACTION
        if form == DIRECT:
            for i in range(out.size):
                distance = np.float32(widen(x[i]) - mu[i])
                fixed = np.int32(_direct(min(np.float32(abs(distance) * reciprocal[i]), _ONE), c))
                smallest = min(smallest, np.int32(fixed & _FRACTION))
                out[i] = _code(fixed, distance)
        else:
            for i in range(out.size):
                distance = np.float32(widen(x[i]) - mu[i])
                fixed = np.int32(_logarithm(min(np.float32(abs(distance) * reciprocal[i]), _ONE), c))
                smallest = min(smallest, np.int32(fixed & _FRACTION))
                out[i] = _code(fixed, distance)
        return smallest

    @inner
    def row_codes(form, x, mu, reciprocal, c, margin, thresholds, out):
        """Exact codes of a row with a centre and a scale for every value."""
        begin, size = 0, _SEGMENT
        while begin < out.size:
            end = min(begin + size, out.size)
            part, centre, inverse, target = x[begin:end], mu[begin:end], reciprocal[begin:end], out[begin:end]
            if fill_row(form, part, centre, inverse, c, target) < margin:
                if size == _SEGMENT:
                    size = _BLOCK  # once more, and now in blocks: most of them have no doubtful value
                    continue
                for i in range(target.size):
                    target[i] = _exact(np.float32(widen(part[i]) - centre[i]), inverse[i], thresholds, target[i])
            begin = end
            if begin % _SEGMENT == 0:
                size = _SEGMENT

    return row_codes
