"""Range coding by the library constriction (Bamler, arXiv 2201.01741).

The encoder and the decoder see the same sequence of models. All runs of symbols share one stream of 32-bit words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Symbols and the model of all of them.
Run = tuple[NDArray[np.integer[Any]], Any]


def table(frequencies: NDArray[Any]) -> Any:
    """The model of symbols 0 … n-1 with such frequencies; n is 2 at least. A frequency of 0 can still be coded."""
    import constriction

    return constriction.stream.model.Categorical(np.ascontiguousarray(frequencies, dtype=np.float32), perfect=False)


def gaussian(mean: float, deviation: float, limit: int) -> Any:
    """The model of symbols from -limit to limit that are a rounded normal variable."""
    import constriction

    return constriction.stream.model.QuantizedGaussian(-limit, limit, float(mean), float(deviation))


def encode(runs: Iterable[Run]) -> NDArray[np.uint32]:
    """Encode runs of symbols, each with its model, into one stream."""
    import constriction

    coder = constriction.stream.queue.RangeEncoder()
    for symbols, model in runs:
        coder.encode(np.ascontiguousarray(symbols, dtype=np.int32), model)
    stream: NDArray[np.uint32] = coder.get_compressed()
    return stream


class Decoder:
    """Decodes the runs of a stream in the order in which they were encoded."""

    def __init__(self, stream: NDArray[np.uint32]) -> None:
        import constriction

        self._coder = constriction.stream.queue.RangeDecoder(np.array(stream, dtype=np.uint32))

    def run(self, model: Any, count: int) -> NDArray[np.int32]:
        """The next so many symbols, which have this model."""
        symbols: NDArray[np.int32] = self._coder.decode(model, count)
        return symbols
