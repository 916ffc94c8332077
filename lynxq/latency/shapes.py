"""Shapes of models, and the bytes of lynxq's streams for them: counted by the layout, not by a rule of thumb."""

from __future__ import annotations

from dataclasses import dataclass

from lynxq.arguments import instance, integer
from lynxq.errors import DTypeError, ParamsError
from lynxq.format.frames import HEADER_SIZE
from lynxq.latency.equations import kv_bytes
from lynxq.layout import Layout
from lynxq.params import Params


@dataclass(frozen=True)
class ModelShape:
    """What the size of a model's KV cache depends on.

    Parameters
    ----------
    layers : int
    kv_heads, head_dim : int
    latent : bool
        One vector of ``kv_heads * head_dim`` for a token, in place of keys and values (MLA).

    Examples
    --------
    >>> from lynxq.latency import ModelShape
    >>> ModelShape(layers=94, kv_heads=4, head_dim=128).kv_bytes(131_072) / 2**30
    23.5
    """

    layers: int
    kv_heads: int
    head_dim: int
    latent: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim"):
            integer(name, getattr(self, name), 1, 1 << 31, ParamsError)

    @property
    def k_factor(self) -> int:
        """2 for keys and values, 1 for a latent vector."""
        return 1 if self.latent else 2

    def elements(self, tokens: int) -> int:
        """Values of a context's cache."""
        return self.k_factor * self.layers * self.kv_heads * self.head_dim * tokens

    def kv_bytes(self, tokens: int, bits_per_element: float = 16) -> float:
        """Bytes of a context's cache (equation 2 of the references)."""
        return kv_bytes(
            tokens,
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            bits_per_element=bits_per_element,
            k_factor=self.k_factor,
        )


@dataclass(frozen=True)
class StreamSizes:
    """Bytes of both streams of a whole cache.

    Parameters
    ----------
    anchor, residual : int
        Bytes.
    elements : int
        Values of the cache.
    """

    anchor: int
    residual: int
    elements: int

    @property
    def anchor_bits(self) -> float:
        """Anchor bits for one value; 0 for an empty cache."""
        return 8 * self.anchor / self.elements if self.elements else 0.0

    @property
    def residual_bits(self) -> float:
        """Residual bits for one value; 0 for an empty cache."""
        return 8 * self.residual / self.elements if self.elements else 0.0


def stream_sizes(
    shape: ModelShape, tokens: int, *, keys: Params | None = None, values: Params | None = None, dtype: str = "bfloat16"
) -> StreamSizes:
    """Bytes of the anchor and of the residual of a context, with metadata, alignment and frame headers.

    Parameters
    ----------
    shape : ModelShape
    tokens : int
        Context length.
    keys, values : Params, optional
        Parameters of the codec; the presets of these names by default. A latent vector is coded as keys are.
    dtype : str
        Of the cache.

    Returns
    -------
    StreamSizes

    Examples
    --------
    >>> from lynxq.latency import ModelShape, stream_sizes
    >>> sizes = stream_sizes(ModelShape(layers=94, kv_heads=4, head_dim=128), 131_072)
    >>> round(sizes.anchor_bits, 2), round(sizes.residual_bits, 2)
    (4.57, 4.0)
    """
    instance("shape", shape, ModelShape, DTypeError)
    kinds = [keys or Params.keys()] if shape.latent else [keys or Params.keys(), values or Params.values()]
    anchor = residual = 0
    for params in kinds:
        instance("keys and values", params, Params, DTypeError)
        layout = Layout.of(params, (tokens, shape.kv_heads, shape.head_dim), dtype, token_axis=0)
        anchor += shape.layers * (layout.stream_size("anchor") + layout.pages * HEADER_SIZE)
        residual += shape.layers * (layout.stream_size("residual") + layout.pages * HEADER_SIZE)
    return StreamSizes(anchor, residual, shape.elements(tokens))
