"""BF16: no compression, the paper's reference for accuracy."""

from __future__ import annotations

from dataclasses import dataclass

from lynxq import dtypes
from lynxq.baselines.base import F32, Context, Parts, Scheme


@dataclass(frozen=True)
class BFloat16(Scheme):
    """16 bits a value: the identity for a bfloat16 cache; float32 and float16 are rounded to nearest even.

    Parts: ``values``, bit patterns in C order.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import BFloat16
    >>> coded = BFloat16().encode(np.array([1.0, 3.14159], np.float32), token_axis=0)
    >>> coded.nbytes, coded.decode().tolist()
    (4, [1.0, 3.140625])
    """

    name = "bf16"
    title = "BF16, uncompressed"
    paper = "-"

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        del context
        return {"values": dtypes.from_float32(values, dtypes.BFLOAT16).reshape(-1)}

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        return dtypes.to_float32(parts["values"], dtypes.BFLOAT16).reshape(context.block)
