"""What the golden files are made of: named inputs and parameters. Never change an entry, only add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import xxhash

from lynxq import Params


def digest(array: Any) -> str:
    """Checksum of an array's bytes in C order."""
    return f"{xxhash.xxh3_64_intdigest(np.ascontiguousarray(array).view(np.uint8).reshape(-1)):016x}"


def _words(count: int, seed: int) -> np.ndarray[Any, Any]:
    """32-bit words of splitmix64: integer arithmetic only, the same everywhere and forever."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))) >> np.uint64(32)


def bell(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Roughly normal values: the centred sum of four uniform ones, exact in float32."""
    words = _words(4 * int(np.prod(shape)), seed).reshape(4, *shape) >> np.uint64(12)
    return ((words.sum(axis=0).astype(np.int64) - (2 << 20)) / 2.0**19).astype(np.float32)


def hostile(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Values over the whole exponent range of float16, zeros of both signs, an outlier token, a biased channel."""
    values = np.ldexp(bell(shape, seed), (_words(int(np.prod(shape)), seed + 1).reshape(shape) % 24).astype(int) - 16)
    values[_words(values.size, seed + 2).reshape(shape) % 16 == 0] = -0.0
    values[shape[0] // 2] *= 50
    values[..., 0] += 200
    return values.astype(np.float32)


def _excerpt(name: str) -> Callable[[], Any]:
    def load() -> Any:
        data = (files("lynxq") / "data" / "smollm2_excerpt.safetensors").read_bytes()
        tensor = dict(safetensors.deserialize(data))[name]
        return np.frombuffer(tensor["data"], ml_dtypes.bfloat16).reshape(tensor["shape"])

    return load


@dataclass(frozen=True)
class Case:
    """An input, how it is encoded, and nothing about who encodes it."""

    make: Callable[[], Any]
    params: Params
    token_axis: int = 0
    options: dict[str, int] = field(default_factory=dict)


CASES: dict[str, Case] = {
    "real-key-keys": Case(_excerpt("layer.5.key"), Params.keys()),
    "real-value-values": Case(_excerpt("layer.5.value"), Params.values()),
    "real-value-keys": Case(_excerpt("layer.18.value"), Params.keys()),
    "real-key-paper": Case(_excerpt("layer.18.key"), Params.paper()),
    "head-first": Case(lambda: bell((2, 3, 300, 20), 1), Params.keys(), token_axis=2),
    "flat-heads": Case(
        lambda: bell((70, 6 * 80), 2).astype(np.float16),
        Params.values(),
        options={"head_dim": 80, "first_token": 2, "valid_tokens": 69},
    ),
    "custom-points": Case(
        lambda: bell((40, 9), 3), Params.keys(anchor_points=(0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 0.9))
    ),
    "alpha-large": Case(lambda: bell((40, 9), 4), Params.keys(alpha=2000.0, sink_tokens=0)),
    "alpha-linear": Case(lambda: bell((40, 9), 5), Params.keys(alpha=0.0)),
}
for _axis in ("token", "channel"):
    for _bits in (3, 4, 5, 6):
        for _center in ("midrange", "mean"):
            for _width, _dtype in (("u8", ml_dtypes.bfloat16), ("u16", np.float16), ("f32", np.float32)):
                _number = len(CASES)
                CASES[f"{_axis}-{_bits}-{_center}-{_width}"] = Case(
                    lambda seed=_number, dtype=_dtype: hostile((77, 2, 35), seed).astype(dtype),
                    Params(
                        axis=_axis,
                        page=32,
                        range_size=16,
                        chunk=8,
                        anchor_bits=_bits,
                        residual_bits=8 - _bits,
                        center=_center,
                        metadata=_width,
                        sink_tokens=3,
                    ),
                )
