"""8-bit floats (fp8 e4m3) and NormalFloat (NF4): codes whose levels are denser near zero.

fp8 e4m3: Micikevicius et al., *FP8 Formats for Deep Learning* (arXiv 2209.05433): 4 bits of exponent, 3 of mantissa,
no infinities, largest value 448. Serving systems store KV caches so either with one scale for a tensor or without a
scale (vLLM's default scale of 1, LMCache's ``fp8`` serde). The largest |x| becomes 448 with a scale; without, values
beyond ±448 saturate, as they do in these systems. The scale is float32.

NF4: Dettmers et al., *QLoRA* (arXiv 2305.14314), appendix E, and bitsandbytes: 16 levels at the quantiles of a normal
distribution, with an exact 0, ±1 at the ends; blocks of 64 with a float32 scale that is the block's largest |x|; double
quantization off. Deviations: blocks run along the channels inside a head instead of across the flattened tensor (the
same where 64 divides the head dim), and a block of zeros has scale 0 and decodes to zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from lynxq.arguments import integer
from lynxq.baselines import codes as coding
from lynxq.baselines.base import F32, Context, Parts, Scheme
from lynxq.errors import ParamsError

#: Largest finite value of e4m3.
_E4M3_MAX = 448.0

#: The levels of NF4, as the QLoRA paper lists them.
NF4_LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


@dataclass(frozen=True)
class Float8(Scheme):
    """fp8 e4m3, with one scale for the tensor or with none.

    Parts: ``scale`` (float32, if there is one) and ``values``, one byte each.

    Parameters
    ----------
    scaled : bool
        Whether the largest |x| of the tensor becomes 448.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import Float8
    >>> x = np.array([896.0, 3.14159, -0.5], np.float32)
    >>> for scaled in (True, False):
    ...     print(Float8(scaled).encode(x, token_axis=0).decode().tolist())
    [896.0, 3.25, -0.5]
    [448.0, 3.25, -0.5]
    """

    scaled: bool = True

    paper = "FP8 Formats, arXiv 2209.05433"

    @property
    def name(self) -> str:  # type: ignore[override]
        """Short name."""
        return "fp8" if self.scaled else "fp8-unscaled"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name for tables."""
        return "fp8 e4m3, scale per tensor" if self.scaled else "fp8 e4m3, no scale"

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        import ml_dtypes

        del context
        peak = np.float32(np.abs(values).max(initial=0.0))
        scale = np.float32(peak / np.float32(_E4M3_MAX)) if self.scaled else np.float32(1.0)
        factor = 1.0 / float(scale) if scale else 0.0
        scaled = np.clip(values.reshape(-1) * np.float64(factor), -_E4M3_MAX, _E4M3_MAX).astype(np.float32)
        codes = scaled.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        return {"scale": np.array([scale]), "values": codes} if self.scaled else {"values": codes}

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        import ml_dtypes

        values = parts["values"].view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        if self.scaled:
            values *= float(parts["scale"][0])
        return coding.to_float32(values).reshape(context.block)


@dataclass(frozen=True)
class NormalFloat4(Scheme):
    """NF4 in blocks of channels inside a head.

    Parts: ``scale``, float32, one for every block, and ``codes``, 4 bits each.

    Parameters
    ----------
    block : int
        Values of a block.

    Raises
    ------
    ParamsError
        If `block` is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import NormalFloat4
    >>> coded = NormalFloat4().encode(np.array([[-2.0, 0.0, 0.2, 1.5]], np.float32), token_axis=0)
    >>> coded.decode().round(4)
    array([[-2.    ,  0.    ,  0.1592,  1.4459]], dtype=float32)
    """

    block: int = 64

    name = "nf4"
    paper = "QLoRA, arXiv 2305.14314"

    def __post_init__(self) -> None:
        integer("block", self.block, 1, 1 << 20, ParamsError)

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name for tables."""
        return f"NF4, blocks of {self.block}"

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        blocks = coding.split(values, 3, self.block).astype(np.float64)
        scale = np.abs(blocks).max(axis=4, keepdims=True)
        unit = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)
        levels = np.array(NF4_LEVELS)
        codes = np.searchsorted((levels[:-1] + levels[1:]) / 2, unit)
        joined = coding.join(codes, 3, context.block[3])
        return {"scale": scale.astype(np.float32), "codes": coding.pack(joined, 4)}

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        codes = coding.unpack(parts["codes"], 4, prod(context.block)).reshape(context.block)
        values = np.array(NF4_LEVELS)[coding.split(codes, 3, self.block)] * parts["scale"].astype(np.float64)
        return coding.to_float32(coding.join(values, 3, context.block[3]))
