"""Bit planes: codes of 2 to 6 bits packed along tokens, byte by byte of a channel.

A plane of width w holds w bits of every code; its byte j of a channel holds tokens j·8/w and following, the
first one in the lowest bits. Codes of 3, 5 and 6 bits are split into planes of 2+1, 4+1 and 4+2 bits, the
first plane holding the lowest bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lynxq.layout import PLANE_WIDTHS, ceil_div

Codes = NDArray[np.uint8]


def pack(codes: Codes, bits: int) -> list[Codes]:
    """Pack codes of `bits` bits, shape (outer, tokens, channels), into their planes.

    Returns
    -------
    list of ndarray of uint8, each of shape (outer, ceil(tokens·width/8), channels)
        Unused bits of a last row are zero.

    Examples
    --------
    >>> codes = np.array([1, 2, 15], np.uint8).reshape(1, 3, 1)
    >>> [hex(byte) for byte in pack(codes, 4)[0].ravel()]
    ['0x21', '0xf']
    """
    outer, tokens, channels = codes.shape
    planes, shift = [], 0
    for width in PLANE_WIDTHS[bits]:
        part = (codes >> shift) & ((1 << width) - 1) if len(PLANE_WIDTHS[bits]) > 1 else codes
        per_byte = 8 // width
        plane = np.zeros((outer, ceil_div(tokens, per_byte), channels), np.uint8)
        for slot in range(per_byte):
            row = part[:, slot::per_byte]
            plane[:, : row.shape[1]] |= row << (slot * width)
        planes.append(plane)
        shift += width
    return planes


def unpack(planes: Sequence[Codes], bits: int, tokens: int) -> Codes:
    """The inverse of `pack`: codes of shape (outer, tokens, channels); unused bits are ignored."""
    outer, _, channels = planes[0].shape
    codes = np.empty((outer, tokens, channels), np.uint8)
    shift = 0
    for plane, width in zip(planes, PLANE_WIDTHS[bits], strict=True):
        per_byte, mask = 8 // width, (1 << width) - 1
        for slot in range(per_byte):
            target = codes[:, slot::per_byte]
            part = ((plane[:, : target.shape[1]] >> (slot * width)) & mask) << shift
            if shift:
                target |= part
            else:
                target[...] = part
        shift += width
    return codes
