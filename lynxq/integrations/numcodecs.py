"""The codec ``lynxq`` of numcodecs, for arrays of zarr format 2 and for references such as those of kerchunk.

It is found by numcodecs through an entry point; importing this module is only needed to make codecs. Arrays of zarr
format 3 are better served by :mod:`lynxq.integrations.zarr`, which reads parts of chunks.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from lynxq.arguments import choice
from lynxq.container.reader import Reader
from lynxq.errors import DTypeError, IdentityError, ShapeError, WriterError
from lynxq.integrations.zarr_chunks import NAME, Chunks
from lynxq.layout import Tier
from lynxq.libraries import absent
from lynxq.params import Params

try:
    from numcodecs.abc import Codec
except ImportError as error:
    Codec = absent("numcodecs", "lynxq[numcodecs]", error)


class Lynxq(Codec):
    """Codes an array of float32 or float16, or of uint16 seen as bfloat16, as a container; a compressor or a filter.

    Parameters
    ----------
    token_axis : int
        The axis of tokens.
    params : Params, or a mapping of its fields
        ``Params.keys()`` by default.
    head_dim : int, optional
        Where heads end if the last axis holds several of them.
    view : {"bfloat16"}, optional
        For arrays of uint16 that hold the bits of bfloat16: zarr format 2 has no name for that type.
    tier : {"full", "anchor"}
        What `decode` gives. With "anchor" nothing can be encoded, and what is decoded may be any prefix that covers
        the anchors, such as the range of a reference.

    Raises
    ------
    MissingLibraryError
        If numcodecs is not installed.
    ParamsError
        If a value is not one of these.

    Examples
    --------
    >>> import numcodecs, numpy as np
    >>> codec = numcodecs.get_codec({"id": "lynxq", "token_axis": 0})
    >>> keys = np.random.default_rng(0).standard_normal((512, 2, 64), dtype=np.float32)
    >>> codec.decode(codec.encode(keys)).shape
    (512, 2, 64)
    """

    codec_id = NAME

    def __init__(
        self,
        *,
        token_axis: int,
        params: Params | None = None,
        head_dim: int | None = None,
        view: str | None = None,
        tier: Tier = "full",
    ) -> None:
        choice("tier", tier, Tier)
        self._chunks = Chunks(Params.keys() if params is None else params, token_axis, head_dim, view)
        self._tier: Tier = tier

    def get_config(self) -> dict[str, Any]:
        """The codec as it stands in an array's metadata."""
        tier = {} if self._tier == "full" else {"tier": self._tier}
        return {"id": NAME, **self._chunks.to_config(), **tier}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The codec of an array's metadata; raises `ParamsError` for a configuration that is not one of this codec."""
        Chunks.check_config(config, "tier")
        return cls(**config)

    def encode(self, buf: Any) -> memoryview:
        """An array as a container.

        Parameters
        ----------
        buf : ndarray
            With its shape and dtype, in C order: containers know of no other.

        Raises
        ------
        WriterError
            If the codec reads at the tier "anchor".
        DTypeError, ShapeError, NonFiniteError
            If the array cannot be coded.
        """
        if self._tier != "full":
            raise WriterError(f"a codec that reads at the tier {self._tier!r} cannot encode")
        if not isinstance(buf, np.ndarray):
            raise DTypeError(f"an array with a shape is needed, got {type(buf).__name__}: let lynxq be the first codec")
        if not buf.flags.c_contiguous:
            raise ShapeError(f"an array must be in C order, got shape {buf.shape} with strides {buf.strides}")
        return self._chunks.encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """The array of a container.

        Parameters
        ----------
        buf : bytes-like
            A container of one tensor.
        out : buffer, optional
            Of the array's size in bytes; an array in C order, as `encode` takes it.

        Raises
        ------
        ContainerError
            One of its subclasses for everything that can be wrong with a container.
        ShapeError, DTypeError
            If `out` is an array in another order, or of another dtype than the chunk. Without an array as `out` the
            codec cannot know what dtype the caller expects.
        """
        from numcodecs.compat import ensure_contiguous_ndarray, ndarray_copy

        if isinstance(out, np.ndarray) and out.flags.f_contiguous and not out.flags.c_contiguous:
            raise ShapeError(f"out must be in C order, got shape {out.shape} with strides {out.strides}")
        with Reader(ensure_contiguous_ndarray(buf)) as reader:
            if len(reader) != 1:
                raise IdentityError(f"a chunk must be a container of one tensor, got {len(reader)}")
            (tensor,) = reader.values()
            found = tensor.decode(self._tier)
        if self._chunks.view is not None:
            if tensor.dtype != self._chunks.view:
                raise IdentityError(f"a chunk must be {self._chunks.view}, got {tensor.dtype}")
            found = found.view(np.uint16)
        # numcodecs copies bytes: those of one 16-bit type would be taken for another one. Plain bytes say nothing.
        if isinstance(out, np.ndarray) and out.dtype.itemsize > 1 and out.dtype != found.dtype:
            raise DTypeError(f"out must be of dtype {found.dtype} like the chunk, got {out.dtype}")
        return found if out is None else ndarray_copy(found, out)

    def __repr__(self) -> str:
        given = {name: value for name, value in self.get_config().items() if name != "id"}
        return f"Lynxq({', '.join(f'{name}={value!r}' for name, value in given.items())})"
