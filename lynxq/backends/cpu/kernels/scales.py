"""Centres and scales of chunks, elementwise: :mod:`lynxq.quantizer` operation by operation.

All arguments are rows of one length: entry i of each belongs to one chunk. `lo` and `hi` are those of its run.
"""

from __future__ import annotations

import numpy as np

from lynxq.backends.cpu.kernels.convert import F32, get_signed_16, get_unsigned_16, get_values, put_16, put_32
from lynxq.backends.cpu.kernels.jit import bits_of, inner

#: How μ and σ are stored: not at all (they follow from the range), or in so many bytes.
IMPLIED, BYTES_1, BYTES_2, BYTES_4 = 0, 1, 2, 4

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_MIN_SIGMA = np.float32(2.0**-126)
_MIN_STEP = np.float32(2.0**-125)
_MAX = np.finfo(np.float32).max
_LARGE = np.float32(2.0**126)
#: Adding and subtracting it rounds a small number to an integer, ties to even.
_ROUND = np.float32(1.5 * 2.0**23)


@inner
def _larger(a, b):
    return a if a > b else b


@inner
def _smaller(a, b):
    return a if a < b else b


@inner
def _float_sigma(deviation):
    return _larger(deviation, _MIN_SIGMA) if deviation > _ZERO else _ZERO


@inner
def _steps(stored):
    return np.float32(127) if stored == BYTES_1 else np.float32(32767)


@inner
def _step(lo, hi, steps):
    return _larger(np.float32(hi * _HALF - lo * _HALF) / steps, _MIN_STEP)


@inner
def _middle(lo, hi):
    """Never -0."""
    return np.float32(np.float32(lo * _HALF + hi * _HALF) + _ZERO)


@inner
def _centre(middle, stored, step):
    """At the end of a range it can round to more than the largest float32, which it then is."""
    return _smaller(_larger(np.float32(middle + np.float32(stored * step)), -_MAX), _MAX)


@inner
def implied_scales(lo, hi, mu, sigma):
    """Centre and scale of chunks that are their range."""
    for i in range(mu.size):
        middle = _middle(lo[i], hi[i])
        mu[i] = middle
        sigma[i] = _float_sigma(_larger(np.float32(hi[i] - middle), np.float32(middle - lo[i])))


@inner
def clamp_means(lo, hi, chunk_lo, chunk_hi, mu):
    """Turn means into centres: within the chunk's range, and its middle where the run is too wide for a mean."""
    for i in range(mu.size):
        mean = _smaller(_larger(np.float32(mu[i] + _ZERO), chunk_lo[i]), chunk_hi[i])
        large = np.float32(hi[i] * _HALF - lo[i] * _HALF) > _LARGE
        mu[i] = _middle(chunk_lo[i], chunk_hi[i]) if large else mean


@inner
def middles(chunk_lo, chunk_hi, mu):
    """Midrange centres."""
    for i in range(mu.size):
        mu[i] = _middle(chunk_lo[i], chunk_hi[i])


@inner
def quantize_scales(stored, mean, lo, hi, chunk_lo, chunk_hi, mu, sigma):
    """Replace exact centres by what is stored of them, and fill in the scales, both as numbers in float32."""
    if stored == BYTES_4:
        for i in range(mu.size):
            sigma[i] = _float_sigma(_larger(np.float32(chunk_hi[i] - mu[i]), np.float32(mu[i] - chunk_lo[i])))
        return
    steps = _steps(stored)
    largest = np.float32(255) if stored == BYTES_1 else np.float32(65535)
    part = _ONE if mean else _HALF
    for i in range(mu.size):
        middle = _middle(lo[i], hi[i])
        step = _step(lo[i], hi[i], steps)
        unit = np.float32(step * part)
        position = np.float32(np.float32(mu[i] - middle) / step)
        rounded = np.float32(np.float32(position + _ROUND) - _ROUND)
        rounded = _smaller(_larger(rounded, -steps), steps)
        centre = _centre(middle, rounded, step)
        deviation = _larger(np.float32(chunk_hi[i] - centre), np.float32(centre - chunk_lo[i]))
        ratio = np.float32(deviation / unit)
        count = np.float32(np.int32(ratio))
        count = np.float32(count + _ONE) if count < ratio else count
        count = np.float32(count + _ONE) if np.float32(count * unit) < deviation else count
        mu[i] = rounded
        sigma[i] = _smaller(count, largest)


@inner
def dequantize_scales(stored, mean, lo, hi, mu, sigma):
    """Replace stored centres and scales by those that the decoder sees."""
    if stored == BYTES_4:
        return
    steps = _steps(stored)
    part = _ONE if mean else _HALF
    for i in range(mu.size):
        middle = _middle(lo[i], hi[i])
        step = _step(lo[i], hi[i], steps)
        mu[i] = _centre(middle, mu[i], step)
        sigma[i] = _smaller(np.float32(sigma[i] * np.float32(step * part)), _MAX)


@inner
def reciprocals(sigma, reciprocal):
    """1/σ̂, and 0 for a chunk of equal values."""
    for i in range(sigma.size):
        inverse = np.float32(_ONE / sigma[i])
        reciprocal[i] = inverse if sigma[i] > _ZERO else _ZERO


@inner
def put_scales(stored, stream, offset, values, words):
    """Write stored centres or scales; `words` is scratch of the same length."""
    if stored == BYTES_1:
        target = stream[offset : offset + values.size]
        for i in range(values.size):
            target[i] = np.uint8(np.int32(values[i]))
        return
    if stored == BYTES_2:
        for i in range(values.size):
            words[i] = np.uint32(np.int32(values[i]))
        put_16(stream, offset, words)
        return
    for i in range(values.size):
        words[i] = bits_of(values[i])
    put_32(stream, offset, words)


@inner
def get_centres(stored, stream, offset, values):
    """Read stored centres as float32."""
    if stored == BYTES_1:
        source = stream[offset : offset + values.size]
        for i in range(values.size):
            values[i] = np.float32(np.int8(source[i]))
    elif stored == BYTES_2:
        get_signed_16(stream, offset, values)
    else:
        get_values(stream, offset, F32, values)


@inner
def get_scales(stored, stream, offset, values):
    """Read stored scales as float32."""
    if stored == BYTES_1:
        source = stream[offset : offset + values.size]
        for i in range(values.size):
            values[i] = np.float32(source[i])
    elif stored == BYTES_2:
        get_unsigned_16(stream, offset, values)
    else:
        get_values(stream, offset, F32, values)
