"""What every backend must agree on with the reference.

Streams and outputs are filled with poison before they are written, so that a byte left out shows.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lynxq import arrays, backends, dtypes
from lynxq.backends.base import Backend, Bytes
from lynxq.dtypes import DType, Raw
from lynxq.layout import Layout
from lynxq.params import SPLITS, Params
from lynxq.testing import strategies

_POISON = 0xA5
_STREAMS: tuple[Literal["anchor", "residual"], ...] = ("anchor", "residual")


class Case(NamedTuple):
    """A tensor, how it is coded, and how the backend is called."""

    x: NDArray[Any]
    layout: Layout
    threads: int
    out_dtype: DType
    out_memory: str


def _streams(layout: Layout) -> tuple[Bytes, Bytes]:
    anchor, residual = (np.full(layout.stream_size(stream), _POISON, np.uint8) for stream in _STREAMS)
    return anchor, residual


def _output(layout: Layout, dtype: DType, memory: str) -> Raw:
    poison = np.full(layout.shape, _POISON, arrays.numpy_dtype(dtype))
    return arrays.as_raw(strategies.MEMORY[memory](poison) if poison.ndim and memory != "read-only" else poison).raw


def _same(what: str, case: Case, expected: NDArray[Any], actual: NDArray[Any]) -> None:
    wanted, got = (np.ascontiguousarray(part).view(f"u{part.itemsize}") for part in (expected, actual))
    if np.array_equal(wanted, got):
        return
    where = np.argwhere(wanted != got)
    index = tuple(int(i) for i in where[0])
    raise AssertionError(
        f"{what} differs in {len(where)} of {wanted.size} places, first at {index}: "
        f"{wanted[index]:#x} expected, got {got[index]:#x}; {case.layout}, strides {case.x.strides}, "
        f"{case.threads} threads"
    )


def compare(engine: Backend, case: Case) -> None:
    """Encode and decode a case with a backend and with the reference; raises AssertionError if they differ."""
    reference = backends.get("reference")
    layout, raw = case.layout, arrays.as_raw(case.x).raw
    found = engine.first_nonfinite(layout, raw, threads=case.threads)
    assert found is None, f"finite values reported as not finite: {found}; {layout}"  # noqa: S101
    expected, actual = _streams(layout), _streams(layout)
    reference.encode(layout, raw, *expected)
    engine.encode(layout, raw, *actual, threads=case.threads)
    for stream, wanted, got in zip(_STREAMS, expected, actual, strict=True):
        _same(f"the {stream} stream", case, wanted, got)
        wanted.flags.writeable = False
    anchor, residual = expected
    for tier, low in (("anchor", None), ("full", residual)):
        outputs = [_output(layout, case.out_dtype, case.out_memory) for _ in range(2)]
        reference.decode(layout, anchor, low, outputs[0], case.out_dtype)
        engine.decode(layout, anchor, low, outputs[1], case.out_dtype, threads=case.threads)
        _same(f"the {tier} decode into {case.out_memory} {case.out_dtype.name}", case, *outputs)


def _nonfinite(engine: Backend, case: Case) -> None:
    reference = backends.get("reference")
    raw = arrays.as_raw(case.x).raw
    wanted, got = (each.first_nonfinite(case.layout, raw) for each in (reference, engine))
    assert wanted == got, f"non-finite values: {wanted} expected, got {got}; {case.layout}"  # noqa: S101


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Cases of every kind, small enough for many of them."""
    sample = draw(strategies.tensors(max_elements=900))
    params = draw(strategies.params())
    axis = sample.token_axis % sample.x.ndim
    last = sample.x.shape[-1] if axis < sample.x.ndim - 1 else 1
    heads = [n for n in range(1, last + 1) if last % n == 0]
    layout = Layout.of(
        params,
        sample.x.shape,
        sample.x.dtype.name,
        token_axis=axis,
        head_dim=draw(st.none() | st.sampled_from(heads)) if heads else None,
        first_token=draw(st.sampled_from((0, 0, 1, 3, 100))),
        valid_tokens=draw(st.none() | st.integers(0, sample.x.shape[axis])),
    )
    memory = draw(st.sampled_from([kind for kind in strategies.MEMORY if kind != "read-only"]))
    return Case(sample.x, layout, draw(st.integers(1, 3)), draw(st.sampled_from(list(dtypes.BY_NAME.values()))), memory)


#: Shapes and token axes: wide and narrow rows, many outer indices, heads that are not whole runs, tokens last.
_SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((300, 2, 96), 0),
    ((3, 530, 64), 1),
    ((2, 3, 261, 16), 2),
    ((270, 1100), 0),
    ((5, 7, 259), 2),
    ((41, 1, 3, 80), 0),
    ((600, 1), 0),
    ((130, 9, 5), 1),
)


def fixed_cases() -> list[Case]:
    """Larger cases: several pages, units and threads, and all combinations of parameters once."""
    kinds = list(strategies.CONTENTS)
    result = []
    options = product(("token", "channel"), SPLITS, ("midrange", "mean"), ("u8", "u16", "f32"), dtypes.BY_NAME)
    for number, (axis, (anchor, residual), center, metadata, dtype) in enumerate(options):
        shape, token_axis = _SHAPES[number % len(_SHAPES)]
        params = Params(
            axis=axis,  # type: ignore[arg-type]
            range_size=(256, 64, 128, 64)[number % 4],
            chunk=(32, 64, 16, 16)[number % 4],
            anchor_bits=anchor,
            residual_bits=residual,
            center=center,  # type: ignore[arg-type]
            metadata=metadata,  # type: ignore[arg-type]
            alpha=(0.5, 0.0, 1.0, 255.0, 2.0)[number % 5],
        )
        x = strategies.contents(kinds[number % len(kinds)], shape, dtype, number)
        memories = [kind for kind in strategies.MEMORY if kind != "read-only"]
        x = strategies.MEMORY[list(strategies.MEMORY)[number % 7]](x)
        layout = Layout.of(params, shape, dtype, token_axis=token_axis, first_token=number % 3)
        out = list(dtypes.BY_NAME.values())[number // 2 % 3]
        result.append(Case(x, layout, 1 + number % 3, out, memories[number % 5]))
    return result


def check_backend(name: str, *, examples: int = 200) -> None:
    """Compare a backend with the reference: the same streams, byte for byte, and the same decoded bits.

    Parameters
    ----------
    name : str
        Of a registered backend.
    examples : int
        Random examples, on top of the fixed ones.

    Raises
    ------
    AssertionError
        At the first difference; the message says what differs, where, and for which input.
    BackendError
        If there is no such backend here.

    Examples
    --------
    >>> from lynxq.testing import check_backend
    >>> check_backend("reference", examples=3)
    """
    engine = backends.get(name)
    for case in fixed_cases()[: None if examples >= 50 else examples]:
        compare(engine, case)

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(cases())
    def random_case(case: Case) -> None:
        compare(engine, case)
        if case.x.size:
            spoiled = np.array(case.x)
            spoiled.flat[:: 1 + case.x.size // 3] = np.nan
            spoiled.flat[case.x.size // 2] = -np.inf
            _nonfinite(engine, case._replace(x=spoiled))

    random_case()
