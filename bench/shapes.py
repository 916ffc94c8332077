"""Shapes of KV caches of real models, and tensors of these shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


class Shape(NamedTuple):
    """Keys or values of one layer: a model, its heads and head dimension, and the order of axes."""

    model: str
    heads: int
    head_dim: int
    order: str

    @property
    def name(self) -> str:
        return f"{self.model}, {self.heads}×{self.head_dim}, {self.order}"

    def dims(self, tokens: int) -> tuple[tuple[int, ...], int]:
        """Shape of a tensor and its token axis."""
        if self.order == "HND":
            return (self.heads, tokens, self.head_dim), 1
        return (tokens, self.heads, self.head_dim), 0

    def tensor(self, tokens: int) -> tuple[np.ndarray[Any, Any], int]:
        """A bfloat16 tensor of normal values, and its token axis: the speed hardly depends on the values."""
        dims, axis = self.dims(tokens)
        rng = np.random.default_rng(0)
        return rng.standard_normal(dims, dtype=np.float32).astype(ml_dtypes.bfloat16), axis


_MODELS = (
    ("Llama-3-8B", 8, 128),
    ("Qwen3-32B", 8, 128),
    ("Qwen3-235B", 4, 128),
    ("SmolLM2-135M", 3, 64),
)
SHAPES = (
    *(Shape(*model, order) for model in _MODELS for order in ("NHD", "HND")),
    Shape("DeepSeek MLA", 1, 576, "NHD"),
)

#: The shape of README's table, and of the measurement of the reference backend: 8192 tokens are [8192, 8, 128].
MAIN_SHAPE = SHAPES[0]
