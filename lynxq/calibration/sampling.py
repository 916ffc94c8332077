"""The tokens of tensors on which parameters are compared, and what an error in each value costs there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lynxq.calibration.data import F32, Tensor
from lynxq.calibration.sensitivity import Layer, costs
from lynxq.params import Params


def blocks(tokens: int, size: int, wanted: int) -> list[slice]:
    """Blocks of `size` tokens, spread evenly, that have about the wanted number of tokens together.

    All begin at multiples of `size`, so that they hold whole pages.
    """
    count = -(-tokens // size)
    taken = min(max(-(-wanted // size), 1), count)
    numbers = sorted({round(i * (count - 1) / max(taken - 1, 1)) for i in range(taken)})
    return [slice(number * size, min((number + 1) * size, tokens)) for number in numbers]


@dataclass(frozen=True, eq=False)
class Sample:
    """Blocks of a tensor with the cost of errors in them.

    Attributes
    ----------
    tensor : Tensor
    cost : ndarray of float32, broadcastable to (outer, tokens, channels)
        Scaled so that the sum of cost · error² over the sample estimates the objective.
    places : list of slice
        The blocks, along tokens.
    """

    tensor: Tensor
    cost: F32
    places: list[slice]

    def pages(self, params: Params) -> Iterator[tuple[F32, F32]]:
        """Values that are coded, and what errors in them cost, page after page: shape (outer, tokens, channels)."""
        values = self.tensor.values
        cost = np.broadcast_to(self.cost, values.shape)
        for place in self.places:
            for start in range(place.start, place.stop, params.page):
                rows = slice(max(start, params.sink_tokens), min(start + params.page, place.stop))
                if rows.start < rows.stop:
                    yield values[:, rows], cost[:, rows]


def centred_samples(data: Sequence[Tensor], *, size: int, wanted: int) -> list[Sample]:
    """Samples whose cost is the mean over tensors of the centred vNMSE."""
    samples = []
    for tensor in data:
        places = blocks(tensor.values.shape[1], size, wanted)
        rows = np.concatenate([tensor.values[:, place] for place in places], axis=1)
        norm = float(np.square(rows - rows.mean(axis=1, keepdims=True, dtype=np.float64)).sum())
        cost = np.full((1, 1, 1), 1.0 / norm / len(data) if norm else 0.0, np.float32)
        samples.append(Sample(tensor, cost, places))
    return samples


def attention_samples(layers: Sequence[Layer], *, size: int, wanted: int, sink_tokens: int) -> list[Sample]:
    """Samples whose cost is the mean over layers of the attention-output error, as far as it can be foreseen."""
    samples = []
    for layer in layers:
        for tensor, cost in zip((layer.keys, layer.values), costs(layer), strict=True):
            places = blocks(tensor.values.shape[1], size, wanted)
            # What is not in the sample is as costly as what is; sinks have no errors.
            inside = [cost[:, max(place.start, sink_tokens) : place.stop] for place in places]
            part = sum(float(rows.sum(dtype=np.float64)) for rows in inside)
            whole = float(cost[:, sink_tokens:].sum(dtype=np.float64))
            scale = whole / part / len(layers) if part else 0.0
            samples.append(Sample(tensor, cost * np.float32(scale), places))
    return samples
