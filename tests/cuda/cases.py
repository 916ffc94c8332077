"""Parameters and shapes that exercise every branch of the kernels, and the comparison with the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lynxq import Params, arrays, dtypes, testing
from lynxq.backends.base import Backend
from lynxq.backends.reference import ReferenceBackend
from lynxq.layout import Layout

#: What output buffers hold before: a byte or element that is not written shows.
POISON = 0x5A


@dataclass(frozen=True)
class Case:
    """A tensor, how it lies in memory, and how it is encoded."""

    params: Params
    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    token_axis: int = 0
    content: str = "normal"
    memory: str = "contiguous"
    options: dict[str, int] = field(default_factory=dict)
    out_dtype: str | None = None

    def tensor(self, seed: int = 0) -> np.ndarray[Any, Any]:
        return testing.MEMORY[self.memory](testing.contents(self.content, self.shape, self.dtype, seed))

    def layout(self) -> Layout:
        return Layout.of(self.params, self.shape, self.dtype, token_axis=self.token_axis, **self.options)


def _small(**changes: Any) -> Params:
    return Params(**{"page": 32, "range_size": 16, "chunk": 8, "sink_tokens": 3, **changes})


def _channels(**changes: Any) -> Params:
    return Params(**{"axis": "channel", "page": 32, "range_size": 32, "chunk": 16, "sink_tokens": 3, **changes})


CASES: dict[str, Case] = {
    # the presets, in every dtype, with short last pages and sinks
    "keys": Case(Params.keys(), (300, 2, 64)),
    "keys float16": Case(Params.keys(), (300, 2, 64), "float16", content="outliers"),
    "keys float32": Case(Params.keys(), (300, 64), "float32", content="key bias"),
    "keys whole pages": Case(Params.keys(), (512, 128), options={"first_token": 8}),
    "keys head first": Case(Params.keys(), (2, 3, 300, 64), token_axis=2),
    "values": Case(Params.values(), (300, 2, 64)),
    "values float16": Case(Params.values(), (270, 1, 128), "float16"),
    "values float32": Case(Params.values(), (270, 3, 64), "float32", content="extremes"),
    "values subnormals": Case(Params.values(), (70, 64), "float32", content="subnormals"),
    "values head 80": Case(Params.values(), (77, 6, 80), content="loud token"),
    "values head 80 positive": Case(Params.values(), (30, 2, 80), content="neighbours"),
    "values flat heads": Case(Params.values(), (70, 480), "float16", options={"head_dim": 80, "valid_tokens": 69}),
    "paper": Case(Params.paper(), (300, 64)),
    "paper float32": Case(Params.paper(), (100, 64), "float32", content="wide exponents"),
    # bit splits, along both axes
    "3+5": Case(_small(anchor_bits=3, residual_bits=5), (77, 2, 64)),
    "5+3": Case(_small(anchor_bits=5, residual_bits=3, alpha=0.0), (77, 2, 64), "float16"),
    "6+2": Case(_small(anchor_bits=6, residual_bits=2, metadata="u16"), (77, 64), "float32"),
    "4+3": Case(_small(anchor_bits=4, residual_bits=3), (77, 2, 64)),
    "3+4": Case(_small(anchor_bits=3, residual_bits=4, metadata="f32"), (77, 11), "float16"),
    "5+2": Case(_small(anchor_bits=5, residual_bits=2), (77, 64), "float32"),
    "3+2": Case(_small(anchor_bits=3, residual_bits=2, alpha=2000.0), (77, 64)),
    "channel 4+3": Case(_channels(anchor_bits=4, residual_bits=3), (77, 2, 64)),
    "channel 4+2": Case(_channels(anchor_bits=4, residual_bits=2), (77, 2, 64), "float16"),
    "channel 3+3": Case(_channels(anchor_bits=3, residual_bits=3), (45, 2, 20), "float32"),
    "channel 3+5": Case(_channels(anchor_bits=3, residual_bits=5, alpha=2000.0), (77, 2, 64)),
    "channel 5+3": Case(_channels(anchor_bits=5, residual_bits=3), (77, 64), "float32", content="subnormals"),
    "channel 6+2": Case(_channels(anchor_bits=6, residual_bits=2, metadata="u16"), (77, 2, 64), "float16"),
    # centres and metadata
    "mean": Case(_small(center="mean", chunk=16, range_size=32), (77, 64), content="specials"),
    "mean float32": Case(_small(center="mean", metadata="f32"), (77, 8), "float32", content="extremes"),
    "mean one chunk": Case(_small(center="mean", chunk=16, metadata="u16"), (77, 16), "float16"),
    "channel mean": Case(_channels(center="mean"), (45, 2, 64), content="outliers"),
    "channel mean short head": Case(_channels(center="mean", metadata="f32"), (45, 3, 40), "float32"),
    "channel mean one chunk": Case(_channels(center="mean", chunk=32), (45, 2, 24), "float16"),
    "channel chunk": Case(_channels(chunk=8, metadata="f32"), (45, 2, 64), content="neighbours"),
    # runs, chunks, pages and channels that the fast encoders do not take
    "chunk 4": Case(_small(chunk=4), (77, 2, 64)),
    "chunk 3": Case(_small(page=24, range_size=12, chunk=3, center="mean"), (77, 5), "float32", content="specials"),
    "plain mean": Case(_small(chunk=4, center="mean", metadata="f32"), (77, 5), "float32", content="wide exponents"),
    "run 1": Case(_small(range_size=1, chunk=1), (40, 8), "float32", content="wide exponents"),
    "long run": Case(Params.keys(page=4096, range_size=4096, chunk=4096, sink_tokens=0), (4100, 2)),
    "wide strips": Case(Params.keys(page=2048, range_size=2048, chunk=64), (2500, 16)),
    "channel run 3": Case(_channels(range_size=6, chunk=3), (45, 2, 20), "float16"),
    "channel run 1": Case(_channels(range_size=1, chunk=1), (20, 8)),
    "channel long run": Case(_channels(range_size=512, chunk=128, center="mean"), (20, 700), "float32"),
    "channel wide": Case(_channels(range_size=256, chunk=64), (20, 576)),
    "one channel": Case(Params.keys(), (300,), "float32"),
    "odd channels": Case(_small(), (77, 3, 11), content="integers"),
    "odd channels along": Case(_channels(range_size=16, chunk=16), (77, 3, 11)),
    "page 8": Case(Params.keys(page=8, range_size=8, chunk=8, sink_tokens=8), (37, 96)),
    "all sinks": Case(_small(sink_tokens=32), (20, 16)),
    "page 40": Case(Params.keys(page=40, range_size=40, chunk=8, sink_tokens=0), (121, 24)),
    # memory
    "strided": Case(_small(), (77, 3, 16), memory="strided"),
    "offset": Case(_small(), (2, 77, 16), token_axis=1, memory="offset"),
    "transposed": Case(_small(), (77, 2, 16), memory="transposed"),
    "rotated": Case(_channels(), (2, 40, 3, 16), "float16", token_axis=1, memory="rotated"),
    "reversed": Case(_small(), (40, 2, 16), "float32", memory="reversed"),
    "unaligned": Case(_small(), (40, 2, 16), "float32", memory="unaligned"),
    "unaligned halves": Case(_channels(), (40, 2, 16), "float16", memory="unaligned"),
    # conversions while decoding, tokens that hold nothing
    "into float16": Case(_small(), (77, 16), "float32", content="extremes", out_dtype="float16"),
    "into bfloat16": Case(_small(), (77, 16), "float32", content="extremes", out_dtype="bfloat16"),
    "into float32": Case(_channels(), (77, 2, 16), "bfloat16", out_dtype="float32"),
    "bfloat16 into float16": Case(_channels(), (77, 3), "bfloat16", content="outliers", out_dtype="float16"),
    "valid tokens": Case(Params.keys(), (700, 16), options={"valid_tokens": 261}),
    "no valid tokens": Case(_small(), (40, 16), options={"valid_tokens": 0}),
    "constant": Case(_small(), (77, 16), content="constant"),
    "zeros": Case(_channels(metadata="f32"), (77, 16), "float32", content="zeros"),
}

#: A few that between them reach every kernel file, for slow ways to run them.
FEW = (
    "keys",
    "keys float32",
    "values",
    "mean",
    "channel mean",
    "chunk 3",
    "channel run 3",
    "odd channels",
    "3+5",
    "mean float32",
)


def run(backend: Backend, case: Case, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Everything that a backend makes of a case, as bytes."""
    x = arrays.as_raw(case.tensor(seed)).raw
    layout = case.layout()
    dtype = dtypes.named(case.out_dtype) if case.out_dtype else layout.dtype
    anchor, residual = (np.full(layout.stream_size(name), POISON, np.uint8) for name in ("anchor", "residual"))
    backend.encode(layout, x, anchor, residual)
    result = {"anchor": anchor, "residual": residual}
    for name, low in (("decode_anchor", None), ("decode_full", residual)):
        with np.errstate(invalid="ignore"):  # what lies between the values is NaN, of which integers make something
            out = testing.MEMORY[case.memory](np.full(case.shape, POISON, dtype.raw))
        backend.decode(layout, anchor, low, out, dtype)
        result[name] = np.ascontiguousarray(out).reshape(-1).view(np.uint8)
    return result


def check(backend: Backend, case: Case, seed: int = 0) -> None:
    """Compare a backend with the reference, byte for byte."""
    expected, got = run(ReferenceBackend(), case, seed), run(backend, case, seed)
    for name, want in expected.items():
        differ = np.flatnonzero(want != got[name])
        assert not differ.size, f"{name}: {differ.size} of {want.size} bytes differ, the first at {differ[0]}"


def differs(make: Callable[[], Backend], case: Case, seed: int = 0) -> bool:
    """Whether a backend gives other bytes than the reference, or fails."""
    try:
        check(make(), case, seed)
    except (AssertionError, RuntimeError):
        return True
    return False
