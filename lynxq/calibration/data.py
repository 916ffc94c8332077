"""The tensors that a calibration looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynxq import arrays, dtypes
from lynxq.arrays import Array
from lynxq.errors import LynxqError, NonFiniteError, ParamsError, ShapeError
from lynxq.evaluate import RowKind
from lynxq.layout import Layout
from lynxq.naming import Kind
from lynxq.params import Params

F32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the calibration data.

    Attributes
    ----------
    name : str
    kind : {"key", "value", "other"}
    layer : int or None
    array : array
        As the caller gave it.
    layout : Layout
        Shape, dtype, token axis and heads; its parameters do not count.
    values : ndarray of float32, shape (outer, tokens, channels)
    """

    name: str
    kind: RowKind
    layer: int | None
    array: Array
    layout: Layout
    values: F32

    def nbytes(self, params: Params) -> int:
        """Bytes of the tensor's anchor stream with some parameters, everything that is stored."""
        old = self.layout
        layout = Layout.of(params, old.shape, old.dtype, token_axis=old.token_axis, head_dim=old.head_dim)
        return layout.stream_size("anchor")


def load(
    tensors: Mapping[str, Array] | Iterable[tuple[str, Array]],
    kind_of: Callable[[str], Kind | None],
    layer_of: Callable[[str], int | None],
    *,
    token_axis: int,
    head_dim: int | None,
) -> list[Tensor]:
    """Look at all tensors.

    Raises
    ------
    ParamsError
        If there are none.
    DTypeError, ShapeError, NonFiniteError
        As :func:`lynxq.encode` does, and for a tensor without values; a note names it.
    """
    data = []
    for name, array in tensors.items() if isinstance(tensors, Mapping) else tensors:
        try:
            layout, values = _load(array, token_axis, head_dim)
            data.append(Tensor(name, kind_of(name) or "other", layer_of(name), array, layout, values))
        except LynxqError as error:
            error.add_note(f"tensor {name!r}")
            raise
    if not data:
        raise ParamsError("tensors must hold a tensor, got none")
    return data


def _load(x: Array, token_axis: int, head_dim: int | None) -> tuple[Layout, F32]:
    source = arrays.as_raw(x)
    layout = Layout.of(Params(), source.raw.shape, source.dtype, token_axis=token_axis, head_dim=head_dim)
    if not layout.elements:
        raise ShapeError(f"a tensor to calibrate with must have values, got shape {layout.shape}")
    bad = dtypes.nonfinite(source.raw, source.dtype)
    if bad.any():
        first = np.unravel_index(int(bad.argmax()), bad.shape)
        raise NonFiniteError(int(np.count_nonzero(bad)), tuple(int(i) for i in first))
    values = np.ascontiguousarray(dtypes.to_float32(source.raw, source.dtype))
    return layout, values.reshape(layout.outer, layout.tokens, layout.channels)
