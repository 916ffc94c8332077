"""Splitting codes into anchor and residual bits, and bit planes packed along tokens.

Eight rows at a time, since 8 tokens fill whole bytes of every plane.
"""

from __future__ import annotations

import numpy as np

from lynxq.backends.cpu_kernels.jit import inner

_U0, _U1, _U2, _U3, _U4, _U6 = (np.uint8(n) for n in (0, 1, 2, 3, 4, 6))
_NIBBLE = np.uint8(15)


@inner
def split_rows(codes, residual_bits):
    """Turn level and sign into Q_anc · 2^r + Q_res, both as two's complement of a and r bits, in place."""
    bits = np.uint8(residual_bits)
    half = np.uint8((1 << (residual_bits - 1)) - 1)
    mask = np.uint8((1 << residual_bits) - 1)
    for i in range(codes.size):
        code = codes[i]
        level = np.uint8(code & np.uint8(127))
        anchor = np.uint8(np.uint8(level + half) >> bits)
        anchor = np.uint8(~anchor) if code > np.uint8(127) else anchor
        # Q_res = (V_mag << r) - I, and the first term has no bits in the mask.
        codes[i] = np.uint8(np.uint8(anchor << bits) | np.uint8(np.uint8(_U0 - level) & mask))


@inner
def _pack_4(a, b, shift, out):
    for i in range(out.size):
        low = np.uint8(np.uint8(a[i] >> shift) & _NIBBLE)
        out[i] = np.uint8(low | np.uint8(np.uint8(b[i] >> shift) << _U4))


@inner
def _pack_2(a, b, c, d, shift, out):
    for i in range(out.size):
        low = np.uint8(
            np.uint8(np.uint8(a[i] >> shift) & _U3) | np.uint8(np.uint8(np.uint8(b[i] >> shift) & _U3) << _U2)
        )
        high = np.uint8(np.uint8(np.uint8(c[i] >> shift) & _U3) << _U4)
        out[i] = np.uint8(np.uint8(low | high) | np.uint8(np.uint8(d[i] >> shift) << _U6))


@inner
def _add_bit(row, shift, position, out):
    for i in range(out.size):
        out[i] = np.uint8(out[i] | np.uint8(np.uint8(np.uint8(row[i] >> shift) & _U1) << position))


@inner
def pack_rows(codes, lanes, rows, width, shift, stream, offset, pitch):
    """Pack `width` bits of up to 8 rows of codes into a plane; rows beyond `rows` must hold zero."""
    per_byte = 8 // width
    position = np.uint8(shift)
    for j in range((rows + per_byte - 1) // per_byte):
        first = j * per_byte * lanes
        out = stream[offset + j * pitch : offset + j * pitch + lanes]
        a, b = codes[first : first + lanes], codes[first + lanes : first + 2 * lanes]
        if width == 4:
            _pack_4(a, b, position, out)
        elif width == 2:
            c = codes[first + 2 * lanes : first + 3 * lanes]
            d = codes[first + 3 * lanes : first + 4 * lanes]
            _pack_2(a, b, c, d, position, out)
        else:
            out[:] = 0
            for slot in range(8):
                _add_bit(codes[slot * lanes : (slot + 1) * lanes], position, np.uint8(slot), out)


@inner
def _take(source, down, mask, up, add, out):
    if add:
        for i in range(out.size):
            out[i] = np.uint8(out[i] | np.uint8(np.uint8(np.uint8(source[i] >> down) & mask) << up))
    else:
        for i in range(out.size):
            out[i] = np.uint8(np.uint8(np.uint8(source[i] >> down) & mask) << up)


@inner
def unpack_rows(stream, offset, pitch, lanes, rows, width, shift, add, codes):
    """Put a plane's bits of up to 8 rows at bit `shift` of the codes: the first plane sets them, others add."""
    per_byte = 8 // width
    mask = np.uint8((1 << width) - 1)
    for row in range(rows):
        begin = offset + row // per_byte * pitch
        source = stream[begin : begin + lanes]
        out = codes[row * lanes : (row + 1) * lanes]
        _take(source, np.uint8(row % per_byte * width), mask, np.uint8(shift), add, out)
