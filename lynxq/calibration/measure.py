"""The objective, with the codec itself and on whole tensors: what the search only estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lynxq.arrays import Array
from lynxq.calibration.data import F32, Tensor
from lynxq.calibration.sensitivity import Layer, heads
from lynxq.codec import decode_anchor, encode
from lynxq.metrics import AttentionError, ErrorSums, attention_output_error
from lynxq.params import Params

Choice = Callable[[Tensor], Params]


def centred_error(tensors: Sequence[Tensor], choice: Choice) -> float:
    """Mean over tensors of the centred vNMSE."""
    errors = []
    for tensor in tensors:
        near = _decoded(tensor, choice(tensor), None)
        errors.append(ErrorSums.of(tensor.array, near, token_axis=tensor.layout.token_axis).centred_vnmse)
    return float(np.mean(errors))


def attention_error(layers: Sequence[Layer], choice: Choice) -> float:
    """Mean over layers of the attention-output error, keys and values both replaced."""
    errors = []
    for layer in layers:
        near = [_near(tensor, choice(tensor)) for tensor in (layer.keys, layer.values)]
        total: AttentionError | None = None
        for block in layer.queries:
            error = attention_output_error(
                block.rows, heads(layer.keys), heads(layer.values), *near, first_query=block.first
            )
            total = error if total is None else total + error
        errors.append(0.0 if total is None else total.pooled)
    return float(np.mean(errors))


def _decoded(tensor: Tensor, params: Params, dtype: str | None) -> Array:
    layout = tensor.layout
    return decode_anchor(
        encode(tensor.array, params, token_axis=layout.token_axis, head_dim=layout.head_dim), dtype=dtype
    )


def _near(tensor: Tensor, params: Params) -> F32:
    """A reconstruction as (tokens, heads, head dim)."""
    decoded = np.asarray(_decoded(tensor, params, "float32"))
    return heads(replace(tensor, values=decoded.reshape(tensor.values.shape)))
