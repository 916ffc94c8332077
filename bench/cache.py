"""Keys and values to measure peers on: from a safetensors file, or made up where only speed counts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from lynxq.naming import Kind, kind_of
from lynxq.tensorfile import open_tensors

KINDS: tuple[Kind, ...] = ("key", "value")
Tensor = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Cache:
    """Tensors of bfloat16 [tokens, heads, head_dim], and where they are from."""

    tensors: dict[Kind, list[Tensor]]
    source: dict[str, Any]
    synthetic: bool = False

    def large(self, kind: Kind, nbytes: int) -> Tensor:
        """One tensor of about `nbytes` or more for measurements of speed.

        Layers are set side by side as heads, as many as are needed. If all are too few, tokens are repeated, each
        time at half the size (and from the start after 8 times: a scale in float16 must not vanish): mantissas stay,
        while a compressor of bytes finds no repetition within its window.
        """
        first, *others = self.tensors[kind]
        layers = [first, *(layer for layer in others if layer.shape[::2] == first.shape[::2])]
        count, size = 0, 0
        while count < len(layers) and size < nbytes:
            size += layers[count].nbytes
            count += 1
        x = np.concatenate(layers[:count], axis=1)
        times = -(-nbytes // x.nbytes)
        floats = x.astype(np.float32)
        return np.concatenate([(floats * 2.0 ** -(i % 8)).astype(x.dtype) for i in range(times)], axis=0)


def _bfloat16(x: Tensor, token_axis: int) -> Tensor:
    """[tokens, heads, head_dim], with all other axes as heads."""
    moved = np.moveaxis(np.asarray(x, ml_dtypes.bfloat16), token_axis, 0)
    return np.ascontiguousarray(moved).reshape(moved.shape[0], -1, moved.shape[-1])


def from_file(path: Path, token_axis: int) -> Cache:
    """All tensors that are keys or values by their names."""
    tensors: dict[Kind, list[Tensor]] = {kind: [] for kind in KINDS}
    with open_tensors(path) as file:
        for name in file.names:
            kind = kind_of(name)
            if kind is None:
                print(f"{name}: neither key nor value by its name, left out")
            else:
                tensors[kind].append(_bfloat16(file[name], token_axis))
        metadata = file.metadata
    missing = [kind for kind in KINDS if not tensors[kind]]
    if missing:
        raise SystemExit(f"{path} holds no {' and no '.join(missing)}: --synthetic measures speed alone")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Cache(tensors, {"file": path.name, "sha256": digest, "metadata": metadata})


def synthetic() -> Cache:
    """Normal values: errors on them say nothing about caches."""
    rng = np.random.default_rng(0)
    tensors = {kind: [rng.standard_normal((2048, 8, 128), np.float32).astype(ml_dtypes.bfloat16)] for kind in KINDS}
    return Cache(tensors, {"file": None, "synthetic": "normal values, for speed alone"}, synthetic=True)
