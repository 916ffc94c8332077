"""The sections of a page as typed arrays that share the stream's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynxq.backends.base import Bytes
from lynxq.layout import Layout, Stream

#: Sections of a page by name, see `Layout.sections`.
Sections = dict[str, NDArray[Any]]

_CENTRE = {"u8": np.dtype(np.int8), "u16": np.dtype("<i2"), "f32": np.dtype("<f4")}
_SCALE = {"u8": np.dtype(np.uint8), "u16": np.dtype("<u2"), "f32": np.dtype("<f4")}


def page_sections(layout: Layout, data: Bytes, stream: Stream, page: int) -> Sections:
    """View one page of a stream.

    Parameters
    ----------
    layout : Layout
    data : ndarray of uint8
        The whole stream.
    stream : {"anchor", "residual"}
        Which stream it is.
    page : int

    Returns
    -------
    dict of str to ndarray
        ``lo``, ``hi`` and ``sinks`` are raw values, ``mu`` and ``sigma`` stored centres and scales, bit planes
        bytes.
    """
    raw: np.dtype[Any] = layout.dtype.raw
    types: dict[str, Any] = {"lo": raw, "hi": raw, "sinks": raw}
    types |= {"mu": _CENTRE[layout.params.metadata], "sigma": _SCALE[layout.params.metadata]}
    offset = layout.page_offset(stream, page)
    views: Sections = {}
    for section in layout.sections(stream, page):
        begin = offset + section.offset
        part = data[begin : begin + section.nbytes]
        views[section.name] = part.view(types.get(section.name, np.dtype(np.uint8))).reshape(section.shape)
    return views
