"""Element types: bit patterns to float32 and back, sortable keys, and values inside byte streams.

Every function is exact and made of integer and plain float operations, so that loops over it become vectors.
"""

from __future__ import annotations

import numpy as np

from lynxq.backends.cpu.kernels.jit import bits_of, float_of, inner

#: Numbers of element types, those of `lynxq.dtypes`.
F32, F16, BF16 = 0, 1, 2

_HALF = np.float32(0.5)
_HALF_BITS = np.uint32(0x3F000000)
_F16_SCALE = np.float32(2.0**112)
_F16_MIN_NORMAL = np.uint32(0x38800000)
#: Moves an exponent from the bias of float32 to that of float16, modulo 2^32.
_F16_REBIAS = np.uint32((15 - 127) << 23 & 0xFFFFFFFF)
_U1, _U13, _U16, _SIGN = np.uint32(1), np.uint32(13), np.uint32(16), np.uint32(0x80000000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)


# --- to float32 ------------------------------------------------------------------------------------


@inner
def widen_f32(raw):
    return float_of(np.uint32(raw))


@inner
def widen_bf16(raw):
    return float_of(np.uint32(np.uint32(raw) << _U16))


@inner
def widen_f16(raw):
    wide = np.uint32(raw)
    magnitude = np.uint32(np.uint32(wide & np.uint32(0x7FFF)) << _U13)
    sign = np.uint32(np.uint32(wide & np.uint32(0x8000)) << _U16)
    # The product is exact, also where the exponent field is zero: that is what makes subnormals right.
    return float_of(np.uint32(bits_of(float_of(magnitude) * _F16_SCALE) | sign))


# --- from float32; values are finite and within the type's range ---------------------------------------


@inner
def narrow_f32(value):
    return bits_of(value)


@inner
def narrow_bf16(value):
    bits = bits_of(value)
    carry = np.uint32(np.uint32(0x7FFF) + np.uint32(np.uint32(bits >> _U16) & _U1))
    return np.uint16(np.uint32(np.uint32(bits + carry) >> _U16))


@inner
def narrow_f16(value):
    bits = bits_of(value)
    magnitude = np.uint32(bits & _MAGNITUDE)
    carry = np.uint32(np.uint32(0xFFF) + np.uint32(np.uint32(magnitude >> _U13) & _U1))
    normal = np.uint32(np.uint32(np.uint32(magnitude + _F16_REBIAS) + carry) >> _U13)
    # Adding one half makes a unit in the last place 2^-24, which is float16's subnormal step.
    subnormal = np.uint32(bits_of(float_of(magnitude) + _HALF) - _HALF_BITS)
    result = subnormal if magnitude < _F16_MIN_NORMAL else normal
    return np.uint16(result | np.uint32(np.uint32(bits & _SIGN) >> _U16))


# --- sortable keys: integers in the order of the values; -0 sorts before +0 -----------------------------


@inner
def key_16(raw):
    signed = np.int16(raw)
    return np.int16(signed ^ np.int16(np.int16(signed >> np.int16(15)) & np.int16(0x7FFF)))


@inner
def key_32(raw):
    signed = np.int32(raw)
    return np.int32(signed ^ np.int32(np.int32(signed >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@inner
def unkey_16(key):
    """The bit pattern of a key, with +0 for -0."""
    raw = np.uint16(np.int16(key ^ np.int16(np.int16(key >> np.int16(15)) & np.int16(0x7FFF))))
    return np.uint16(0) if raw == np.uint16(0x8000) else raw


@inner
def unkey_32(key):
    """The bit pattern of a key, with +0 for -0."""
    raw = np.uint32(np.int32(key ^ np.int32(np.int32(key >> np.int32(31)) & np.int32(0x7FFFFFFF))))
    return np.uint32(0) if raw == _SIGN else raw


# --- little-endian values in a byte stream --------------------------------------------------------------


@inner
def put_16(stream, offset, values):
    target = stream[offset : offset + 2 * values.size]
    for i in range(values.size):
        value = np.uint16(values[i])
        target[2 * i] = np.uint8(value)
        target[2 * i + 1] = np.uint8(value >> np.uint16(8))


@inner
def put_32(stream, offset, values):
    target = stream[offset : offset + 4 * values.size]
    for i in range(values.size):
        value = np.uint32(values[i])
        target[4 * i] = np.uint8(value)
        target[4 * i + 1] = np.uint8(value >> np.uint32(8))
        target[4 * i + 2] = np.uint8(value >> _U16)
        target[4 * i + 3] = np.uint8(value >> np.uint32(24))


@inner
def _word_16(source, i):
    return np.uint32(source[2 * i] | np.uint32(np.uint32(source[2 * i + 1]) << np.uint32(8)))


@inner
def _word_32(source, i):
    low = np.uint32(source[4 * i] | np.uint32(np.uint32(source[4 * i + 1]) << np.uint32(8)))
    high = np.uint32(source[4 * i + 2] | np.uint32(np.uint32(source[4 * i + 3]) << np.uint32(8)))
    return np.uint32(low | np.uint32(high << _U16))


@inner
def get_signed_16(stream, offset, values):
    """Read int16 as float32."""
    source = stream[offset : offset + 2 * values.size]
    for i in range(values.size):
        values[i] = np.float32(np.int16(_word_16(source, i)))


@inner
def get_unsigned_16(stream, offset, values):
    """Read uint16 as float32."""
    source = stream[offset : offset + 2 * values.size]
    for i in range(values.size):
        values[i] = np.float32(_word_16(source, i))


@inner
def get_values(stream, offset, kind, values):
    """Read values of an element type as float32."""
    size = values.size
    if kind == F32:
        source = stream[offset : offset + 4 * size]
        for i in range(size):
            values[i] = float_of(_word_32(source, i))
        return
    source = stream[offset : offset + 2 * size]
    if kind == BF16:
        for i in range(size):
            values[i] = widen_bf16(_word_16(source, i))
    else:
        for i in range(size):
            values[i] = widen_f16(_word_16(source, i))
