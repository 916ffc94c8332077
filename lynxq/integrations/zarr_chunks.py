"""Chunks of zarr arrays as containers: what the codecs for both versions of zarr have in common."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

import lynxq
from lynxq import arrays, dtypes
from lynxq.arguments import integer, shown
from lynxq.container.reader import Reader
from lynxq.container.stored import StoredTensor
from lynxq.dtypes import BFLOAT16
from lynxq.errors import DTypeError, IdentityError, ParamsError
from lynxq.format.header import Header
from lynxq.layout import Layout, Tier
from lynxq.params import Params

#: The name of a codec in the metadata of arrays.
NAME = "lynxq"

#: The name of the one tensor of a chunk's container.
TENSOR = "chunk"


@dataclass(frozen=True)
class Chunks:
    """How chunks are coded: exactly what the metadata of an array says of it.

    Parameters
    ----------
    params : Params, or a mapping of its fields
    token_axis : int
        The axis of tokens, not negative.
    head_dim : int, optional
        As for :func:`lynxq.encode`.
    view : {"bfloat16"}, optional
        The elements of the array are uint16, and each holds the bits of a bfloat16.

    Raises
    ------
    ParamsError
        If a value is not one of these.
    """

    params: Params
    token_axis: int
    head_dim: int | None = None
    view: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.params, Mapping):
            object.__setattr__(self, "params", Params.from_dict(self.params))
        if not isinstance(self.params, Params):
            raise ParamsError(f"params must be Params or a mapping of its fields, got {shown(self.params)}")
        object.__setattr__(self, "token_axis", integer("token_axis", self.token_axis, 0, 15, ParamsError))
        if self.head_dim is not None:
            object.__setattr__(self, "head_dim", integer("head_dim", self.head_dim, 1, 1 << 48, ParamsError))
        if self.view not in (None, BFLOAT16.name):
            raise ParamsError(f"view must be {BFLOAT16.name!r} or None, got {shown(self.view)}")

    def to_config(self) -> dict[str, Any]:
        """The configuration as JSON types; what is None is left out."""
        config: dict[str, Any] = {"params": self.params.to_dict(), "token_axis": self.token_axis}
        if self.head_dim is not None:
            config["head_dim"] = self.head_dim
        if self.view is not None:
            config["view"] = self.view
        return config

    @staticmethod
    def check_config(config: Mapping[str, Any], *more: str) -> None:
        """Raise `ParamsError` unless a configuration has the names of these parameters, or `more`, and no others."""
        names = [*(field.name for field in fields(Chunks)), *more]
        unknown = sorted(config.keys() - set(names))
        if unknown or "token_axis" not in config:
            wrong = f"got {shown(unknown[0])}" if unknown else "and token_axis is missing"
            raise ParamsError(f"a configuration must have {', '.join(names[:-1])} and {names[-1]}, {wrong}")

    # --- the form of a chunk -----------------------------------------------------------------------

    def layout(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Layout:
        """The layout of a whole chunk of an array.

        Raises
        ------
        DTypeError, ShapeError
            If arrays of that kind cannot be coded in this way.
        """
        if not dtype.isnative:
            raise DTypeError(f"an array must have native byte order, got dtype {dtype.str!r}")
        if self.view is None:
            kind = dtypes.named(dtype)
        elif dtype == np.uint16:
            kind = BFLOAT16
        else:
            raise DTypeError(f"an array that is seen as {self.view} must have dtype uint16, got {dtype}")
        return Layout.of(self.params, shape, kind, token_axis=self.token_axis, head_dim=self.head_dim)

    def header_size(self, layout: Layout) -> int:
        """Bytes of the header of a chunk that was written with these parameters."""
        return Header.of({}, {TENSOR: layout}, ("anchor", "residual")).size

    # --- coding ------------------------------------------------------------------------------------

    def encode(self, chunk: np.ndarray[Any, Any], fill: np.ndarray[Any, Any] | None = None) -> memoryview:
        """A chunk as a container; tokens at its end that hold nothing but `fill` are not stored.

        Raises
        ------
        DTypeError, ShapeError, NonFiniteError
            If the chunk cannot be coded.
        """
        layout = self.layout(chunk.shape, chunk.dtype)
        valid = None if fill is None else _written(chunk, fill, self.token_axis)
        floats = chunk.view(arrays.numpy_dtype(layout.dtype))
        encoded = lynxq.encode(
            floats, self.params, token_axis=self.token_axis, head_dim=self.head_dim, valid_tokens=valid
        )
        file = io.BytesIO()
        lynxq.save(file, {TENSOR: encoded})
        return file.getbuffer()

    def decode(
        self,
        reader: Reader,
        layout: Layout,
        tier: Tier,
        tokens: tuple[int, int] | None = None,
        fill: np.ndarray[Any, Any] | None = None,
    ) -> np.ndarray[Any, Any]:
        """A chunk, or a range of its tokens, out of its container; tokens that are not stored are `fill`.

        Raises
        ------
        IdentityError
            If the container holds something else than a chunk of that layout.
        ContainerError
            For everything that can be wrong with a container.
        """
        tensor = _checked(reader, layout)
        start, stop = (0, layout.tokens) if tokens is None else tokens
        end = max(min(stop, tensor.tokens), start)
        shape = (*layout.outer_shape, stop - start, *layout.inner_shape)
        found: np.ndarray[Any, Any] = np.empty(shape, arrays.numpy_dtype(layout.dtype))
        before = (slice(None),) * layout.token_axis
        if start < end:
            tensor.decode(tier, tokens=(start, end), out=found[(*before, slice(end - start))])
        seen = found if self.view is None else found.view(np.uint16)
        if end < stop:
            seen[(*before, slice(end - start, None))] = 0 if fill is None else fill
        return seen


def _written(chunk: np.ndarray[Any, Any], fill: np.ndarray[Any, Any], token_axis: int) -> int:
    """Tokens of a chunk up to the last one that has another value than `fill`, bit by bit."""
    bits = np.dtype(f"u{chunk.dtype.itemsize}")
    rows = np.moveaxis(chunk.view(bits), token_axis, 0)
    pattern = np.asarray(fill, chunk.dtype).view(bits)
    for tokens in range(len(rows), 0, -1):
        if (rows[tokens - 1] != pattern).any():
            return tokens
    return 0


def _checked(reader: Reader, layout: Layout) -> StoredTensor:
    """The one tensor of a chunk's container."""
    if len(reader) != 1 or reader.segments != 1:
        raise IdentityError(
            f"a chunk must be a container of one tensor and one segment, got {len(reader)} and {reader.segments}"
        )
    (tensor,) = reader.values()
    for what, expected, got in (
        ("dtype", layout.dtype.name, tensor.dtype),
        ("token axis", layout.token_axis, tensor.token_axis),
        ("axes before its tokens", layout.outer_shape, tensor.layout.outer_shape),
        ("axes behind its tokens", layout.inner_shape, tensor.layout.inner_shape),
    ):
        if expected != got:
            raise IdentityError(f"{what} of a chunk must be {expected} as in its array, got {got}")
    if tensor.tokens > layout.tokens:
        raise IdentityError(f"a chunk must have at most {layout.tokens} tokens, got {tensor.tokens}")
    return tensor
