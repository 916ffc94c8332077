"""KVQuant: non-uniform codes, keys scaled per channel and values per token, outliers kept apart.

Source: Hooper et al., *KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization* (NeurIPS
2024, arXiv 2401.18079) and the authors' code (github.com/SqueezeAILab/KVQuant,
``quant/kvquant/simquant_module_quantizer.py``). Defaults are those of *nuq4-1%*: 4 bits, 1 % of outliers (half at
either end), one codebook for a layer, found by k-means (50 rounds at most, weighted with the Fisher information if
there is any) on what is left, shifted and scaled to [-1, 1].

* Keys: the limits of a channel are its percentiles 0.5 and 99.5; what is strictly beyond is an outlier.
* Values: outliers of a token are at or beyond the percentiles of its vector over all heads; its limits are the
  smallest and the largest of the other values.
* Outliers are stored sparsely: value (float16), channel (16 bits), and their number for every token (16 bits).

Gaps and deviations:

* **The authors quantize keys before RoPE.** A cache holds keys after it, and so does this scheme, which is worse for
  it; who can undo the rotation passes such keys.
* The authors fix limits of keys and codebooks on calibration data. Here the limits always come from the tensor itself,
  and so does the codebook unless :meth:`KVQuant.calibrated` has set one. Both are stored, and counted. That is in
  KVQuant's favour: nothing is lost between calibration and use.
* k-means starts at quantiles instead of random points, to be deterministic.
* A token all of whose values are equal has no outliers; by the letter all of them would be. A channel or token without
  a range decodes to its middle.
* Metadata, outliers and codebook are float16 (float32 if a value is beyond float16's range).
* Q-Norm and the exact first token are options of the authors. The latter is :class:`WithSinks`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from lynxq import arrays, dtypes
from lynxq.arguments import choice, integer
from lynxq.arrays import Array
from lynxq.baselines import codes as coding
from lynxq.baselines.base import F32, Context, Parts, Scheme
from lynxq.errors import ParamsError, ShapeError
from lynxq.naming import Kind

F64 = NDArray[np.float64]

_ROUNDS = 50


def fit_codebook(values: F64, bits: int, weights: F64 | None = None) -> F64:
    """2^bits levels by k-means in one dimension, started at quantiles.

    Parameters
    ----------
    values : ndarray of float64
        Any shape.
    bits : int
    weights : ndarray of float64, optional
        Of the shape of `values`, not negative.

    Returns
    -------
    ndarray of float64, shape (2^bits,)
        Increasing; evenly spaced over [-1, 1] if there are no values.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines.kvquant import fit_codebook
    >>> fit_codebook(np.array([0.0, 0.0, 1.0, 3.0]), 1).tolist()
    [0.0, 2.0]
    """
    count = 1 << bits
    order = np.argsort(values, axis=None, kind="stable")
    x = values.reshape(-1)[order]
    if not x.size:
        return np.linspace(-1, 1, count)
    mass = np.ones(x.size) if weights is None else weights.reshape(-1)[order].astype(np.float64)
    if not mass.sum() > 0:
        mass = np.ones(x.size)
    total, moment = (np.concatenate([[0.0], np.cumsum(part)]) for part in (mass, mass * x))
    levels = np.interp((np.arange(count) + 0.5) / count, total[1:] / total[-1], x)
    for _ in range(_ROUNDS):
        ends = np.concatenate([[0], np.searchsorted(x, (levels[:-1] + levels[1:]) / 2), [x.size]])
        inside = np.diff(total[ends])
        moved = np.divide(np.diff(moment[ends]), inside, out=levels.copy(), where=inside > 0)
        if np.array_equal(moved, levels):
            break
        levels = np.sort(moved)
    return levels


@dataclass(frozen=True)
class KVQuant(Scheme):
    """KVQuant with non-uniform codes.

    Parts: ``codebook``, ``middle`` and ``half_range`` of every channel (keys) or token (values), ``codes``, and the
    outliers: ``outliers`` (values), ``channels`` (where in the token), ``counts`` (how many in every token).

    Parameters
    ----------
    bits : int
        Bits of a code, 2 to 5.
    outliers : float
        Share of outliers, from 0 to below 1.
    kind : {"key", "value"}
        Which of the two to code; tensors of neither kind are coded as keys.
    codebook : tuple of float, optional
        The 2^bits levels within [-1, 1]; by default they are fitted to each tensor.

    Raises
    ------
    ParamsError
        If a parameter is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import KVQuant
    >>> keys = np.random.default_rng(0).standard_normal((2048, 2, 64)).astype(np.float32)
    >>> KVQuant().encode(keys, token_axis=0)
    CodedBaseline(kvquant4, shape=(2048, 2, 64), dtype=float32, 4.49 bits per element)
    """

    bits: int = 4
    outliers: float = 0.01
    kind: Kind = "key"
    codebook: tuple[float, ...] | None = None

    paper = "KVQuant, arXiv 2401.18079"

    def __post_init__(self) -> None:
        integer("bits", self.bits, 2, 5, ParamsError)
        choice("kind", self.kind, Kind)
        if not 0 <= self.outliers < 1:
            raise ParamsError(f"outliers must be from 0 to below 1, got {self.outliers!r}")
        if self.codebook is not None and (
            len(self.codebook) != 1 << self.bits or not (np.diff(self.codebook) >= 0).all()
        ):
            raise ParamsError(f"codebook must be {1 << self.bits} levels that do not decrease, got {self.codebook!r}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """Short name."""
        return f"kvquant{self.bits}"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name for tables."""
        return f"KVQuant nuq{self.bits}, {self.outliers:.0%} outliers"

    def for_kind(self, kind: Kind | None) -> Scheme:
        """The variant for keys or for values."""
        return self if (kind or "key") == self.kind else replace(self, kind=kind or "key")

    def calibrated(
        self, x: Array, fisher: Array | None = None, *, token_axis: int, head_dim: int | None = None
    ) -> KVQuant:
        """The scheme with a codebook fitted to calibration data.

        Parameters
        ----------
        x : array, shape (outer…, tokens, inner…)
            Keys or values of a layer, as for :meth:`Scheme.encode`.
        fisher : array, optional
            Diagonal of the Fisher information (squared gradients of the loss), of the shape of `x`.
        token_axis, head_dim
            As for :meth:`Scheme.encode`.

        Raises
        ------
        DTypeError, ShapeError, NonFiniteError
            If an argument does not fit.
        """
        context = self.encode(x, token_axis=token_axis, head_dim=head_dim).context
        values, *weights = (_plain(array, context) for array in (x, fisher) if array is not None)
        unit, _, _, dense = self._normalized(values)
        levels = fit_codebook(unit[dense], self.bits, weights[0][dense] if weights else None)
        return replace(self, codebook=tuple(levels.tolist()))

    def _normalized(self, x: F64) -> tuple[F64, NDArray[np.floating], NDArray[np.floating], NDArray[np.bool_]]:
        """Values (outer, tokens, channels) shifted and scaled, both as stored, and which are no outliers."""
        axis = 1 if self.kind == "key" else 2
        share = 50 * self.outliers
        low, high = np.percentile(x, [share, 100 - share], axis=axis, keepdims=True)
        dense = (x >= low) & (x <= high)
        if self.kind == "value" and self.outliers:
            dense = (x > low) & (x < high)
            # Where the percentiles leave nothing, nothing is an outlier.
            dense |= ~dense.any(axis=axis, keepdims=True)
            low = np.where(dense, x, np.inf).min(axis=axis, keepdims=True)
            high = np.where(dense, x, -np.inf).max(axis=axis, keepdims=True)
        middle, half = coding.narrow(low / 2 + high / 2), coding.narrow(high / 2 - low / 2)
        shifted = x - middle
        return np.divide(shifted, half, out=np.zeros_like(x), where=half > 0), middle, half, dense

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        if not values.size:
            return {}
        outer, tokens, heads, dim = context.block
        x = values.reshape(outer, tokens, heads * dim).astype(np.float64)
        unit, middle, half, dense = self._normalized(x)
        levels = coding.narrow(
            fit_codebook(unit[dense], self.bits) if self.codebook is None else np.array(self.codebook)
        )
        edges = (levels[:-1].astype(np.float64) + levels[1:]) / 2
        width = np.uint16 if heads * dim < 1 << 16 else np.uint32
        return {
            "codebook": levels,
            "middle": middle,
            "half_range": half,
            "codes": coding.pack(np.where(dense, np.searchsorted(edges, unit), 0), self.bits),
            "outliers": coding.narrow(x[~dense]),
            "channels": np.nonzero(~dense)[2].astype(width),
            "counts": np.count_nonzero(~dense, axis=2).astype(width),
        }

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        if not prod(context.block):
            return np.zeros(context.block, np.float32)
        outer, tokens, heads, dim = context.block
        codes = coding.unpack(parts["codes"], self.bits, prod(context.block))
        x = parts["codebook"].astype(np.float64)[codes].reshape(outer, tokens, heads * dim)
        x = x * parts["half_range"].astype(np.float64) + parts["middle"].astype(np.float64)
        rows = np.repeat(np.arange(outer * tokens), parts["counts"].reshape(-1))
        x.reshape(outer * tokens, heads * dim)[rows, parts["channels"]] = parts["outliers"]
        return coding.to_float32(x).reshape(context.block)


def _plain(array: Array, context: Context) -> F64:
    source = arrays.as_raw(array)
    if source.raw.shape != context.shape:
        raise ShapeError(f"fisher must have the shape of x, {context.shape}, got {source.raw.shape}")
    outer, tokens, heads, dim = context.block
    return dtypes.to_float32(source.raw, source.dtype).reshape(outer, tokens, heads * dim).astype(np.float64)
