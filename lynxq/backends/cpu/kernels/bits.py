"""Splitting codes into anchor and residual bits, and bit planes packed along tokens.

Up to eight rows at a time, since 8 tokens fill whole bytes of every plane. A shift of bytes by a variable would be
done in 64-bit lanes; here it is a product of 16 bits, of which the upper byte is taken. 4 + 4 bits, the default, have
functions of their own with constant shifts.
"""

from __future__ import annotations

import numpy as np

from lynxq.backends.cpu.kernels.jit import inner

_ZERO, _SEVEN, _FOUR = np.uint8(0), np.uint8(7), np.uint8(4)
_NIBBLE, _UPPER, _LEVEL = np.uint8(15), np.uint8(240), np.uint8(127)


@inner
def _factor(down, up):
    """Multiplied by it, a byte moves up by 8 - down + up bits, so that its upper byte is the byte shifted."""
    return np.uint16(np.int64(1) << (8 - down + up))


@inner
def _shifted(byte, factor):
    return np.uint8(np.uint16(np.uint16(np.uint16(byte) * factor) >> np.uint16(8)))


# --- packing -----------------------------------------------------------------------------------------


@inner
def split_rows(residual_bits, codes, anchor, residual):
    """Turn level and sign into Q_anc and Q_res, two's complement of a and r bits."""
    half, low = np.uint8((1 << (residual_bits - 1)) - 1), np.uint8((1 << residual_bits) - 1)
    high, factor = np.uint8(255 >> residual_bits), _factor(residual_bits, 0)
    for i in range(codes.size):
        code = codes[i]
        level = np.uint8(code & _LEVEL)
        v_mag = _shifted(np.uint8(level + half), factor)
        anchor[i] = np.uint8((np.uint8(~v_mag) if code > _LEVEL else v_mag) & high)
        residual[i] = np.uint8(np.uint8(_ZERO - level) & low)  # V_mag << r has no bits here


@inner
def pack_nibbles(a, b, anchor, residual):
    """Split and pack two rows of codes of 4 + 4 bits."""
    for i in range(a.size):
        first, second = np.uint8(a[i] & _LEVEL), np.uint8(b[i] & _LEVEL)
        low = np.uint8(np.uint8(first + _SEVEN) >> _FOUR)
        high = np.uint8(np.uint8(second + _SEVEN) & _UPPER)
        low = np.uint8(low ^ (_NIBBLE if a[i] > _LEVEL else _ZERO))
        high = np.uint8(high ^ (_UPPER if b[i] > _LEVEL else _ZERO))
        anchor[i] = np.uint8(low | high)
        residual[i] = np.uint8(
            np.uint8(np.uint8(_ZERO - first) & _NIBBLE) | np.uint8(np.uint8(_ZERO - second) << _FOUR)
        )


@inner
def _put(row, factor, mask, add, out):
    if add:
        for i in range(out.size):
            out[i] = np.uint8(out[i] | np.uint8(_shifted(row[i], factor) & mask))
    else:
        for i in range(out.size):
            out[i] = np.uint8(_shifted(row[i], factor) & mask)


@inner
def pack_rows(codes, lanes, rows, width, shift, stream, offset, pitch):
    """Pack `width` bits, from bit `shift`, of up to 8 rows of codes into a plane."""
    per_byte, mask = 8 // width, (1 << width) - 1
    for row in range(rows):
        begin, up = offset + row // per_byte * pitch, row % per_byte * width
        source, out = codes[row * lanes : (row + 1) * lanes], stream[begin : begin + lanes]
        _put(source, _factor(shift, up), np.uint8(mask << up), up > 0, out)


# --- unpacking ---------------------------------------------------------------------------------------


@inner
def unpack_nibbles(anchor, a, b):
    """Two rows of anchor codes of 4 bits."""
    for i in range(anchor.size):
        a[i] = np.uint8(anchor[i] & _NIBBLE)
        b[i] = np.uint8(anchor[i] >> _FOUR)


@inner
def join_nibbles(anchor, residual, a, b):
    """Two rows of codes of 4 + 4 bits."""
    for i in range(anchor.size):
        a[i] = np.uint8(np.uint8(anchor[i] << _FOUR) | np.uint8(residual[i] & _NIBBLE))
        b[i] = np.uint8(np.uint8(anchor[i] & _UPPER) | np.uint8(residual[i] >> _FOUR))


@inner
def unpack_rows(stream, offset, pitch, lanes, rows, width, shift, codes):
    """Put a plane's bits of up to 8 rows at bit `shift` of the codes: those at bit 0 set them, others add."""
    per_byte, mask = 8 // width, np.uint8(((1 << width) - 1) << shift)
    for row in range(rows):
        begin, down = offset + row // per_byte * pitch, row % per_byte * width
        source, out = stream[begin : begin + lanes], codes[row * lanes : (row + 1) * lanes]
        _put(source, _factor(down, shift), mask, shift > 0, out)
