"""The parameters that a calibration tries: how values are grouped, and how their codes are split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lynxq.params import SPLITS, Axis, Metadata, Params

#: Chunks inside a run.
CHUNKS = (16, 32, 64, 128)
#: Runs along tokens without chunks in them; centre and scale follow from the range.
TOKEN_RUNS = (32, 64, 128, 256, 512)
CHANNEL_RUNS = (16, 32, 64, 128, 256)
WIDTHS: tuple[Metadata, ...] = ("u8", "u16")
#: Strengths of the companding of the first, coarse pass.
ALPHAS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 255.0)


def groupings(axes: Sequence[Axis], page: int, head_dim: int, sink_tokens: int) -> Iterator[Params]:
    """Every way to group values that is tried, as parameters whose other fields are those of the presets.

    The centre is the midrange throughout: a mean has a larger error at the same bits whatever the tensor, since the
    scale is the largest distance from it (see the design page).

    Parameters
    ----------
    axes : sequence of {"token", "channel"}
    page : int
        Tokens in a page.
    head_dim : int
        Runs along channels end with a head, so that longer ones are all the same.
    sink_tokens : int
    """
    for axis in axes:
        if axis == "token":
            run, alone = page, sorted({page, *(size for size in TOKEN_RUNS if size <= page and page % size == 0)})
        else:
            alone = [size for size in CHANNEL_RUNS if size < head_dim]
            run = next((size for size in CHANNEL_RUNS if size >= head_dim), CHANNEL_RUNS[-1])
            alone.append(run)
        base = Params(axis=axis, page=page, range_size=run, chunk=run, sink_tokens=sink_tokens)
        for size in alone:
            yield replace(base, range_size=size, chunk=size)
        for chunk in CHUNKS:
            if chunk < run and run % chunk == 0:
                yield from (replace(base, chunk=chunk, metadata=width) for width in WIDTHS)


def splits(grouping: Params, code_bits: int) -> Iterator[Params]:
    """A grouping with every split of codes of so many bits."""
    for anchor_bits, residual_bits in SPLITS:
        if anchor_bits + residual_bits == code_bits:
            yield replace(grouping, anchor_bits=anchor_bits, residual_bits=residual_bits)
