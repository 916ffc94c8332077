"""The codec once more, one value at a time: an executable specification that shares no arithmetic with lynxq.

Only the tables (`lynxq.companding`, tested on their own) and `Params` are taken from lynxq. Everything is a loop
over numpy float32 scalars, each operation rounded to nearest even. A *line* is the sequence of values along the
grouping axis: the coded tokens of one channel, or the channels of one token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from lynxq import companding
from lynxq.params import Params

F = np.float32
ZERO, HALF, ONE, MAX = F(0), F(0.5), F(1), F(np.finfo(F).max)
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LARGEST = {name: F(ml_dtypes.finfo(dtype).max) for name, dtype in DTYPES.items()}
PLANES = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2]}
STEPS = {"u8": 127, "u16": 32767}


def runs_of(length: int, params: Params, head: int) -> list[list[range]]:
    """Chunks of every run of a line of so many values; runs and chunks begin anew every `head` values."""
    runs = []
    for first in range(0, length, head):
        end = min(first + head, length)
        for start in range(first, end, params.range_size):
            stop = min(start + params.range_size, end)
            runs.append([range(c, min(c + params.chunk, stop)) for c in range(start, stop, params.chunk)])
    return runs


# --- scales ----------------------------------------------------------------------------------------


def smallest_and_largest(values: list[F]) -> tuple[F, F]:
    """Both as +0 where they are -0."""
    return min(values) + ZERO, max(values) + ZERO


def clamp(value: F, lo: F, hi: F) -> F:
    """The limit if it equals the value: a -0 becomes the +0 that limits it."""
    return max(lo, min(hi, value))


def middle_of(lo: F, hi: F) -> F:
    return lo * HALF + hi * HALF + ZERO


def deviation_from(mu: F, lo: F, hi: F) -> F:
    return max(hi - mu, mu - lo)


def at_least_normal(deviation: F) -> F:
    return max(deviation, F(2.0**-126)) if deviation > 0 else ZERO


def units(params: Params, lo: F, hi: F) -> tuple[F, F]:
    """Units in which μ and σ are counted."""
    step = max((hi * HALF - lo * HALF) / F(STEPS[params.metadata]), F(2.0**-125))
    return step, step * HALF if params.center == "midrange" else step


def centre_of(middle: F, mu_stored: float, step: F) -> F:
    """μ̂; at the end of a range it can round to more than the largest float32, which it then is."""
    return min(max(middle + F(mu_stored) * step, -MAX), MAX)


def stored_of(params: Params, values: list[F], run: tuple[F, F]) -> tuple[float, float]:
    """What is stored of a chunk's μ and σ: integers, or floats for float32 metadata."""
    lo, hi = smallest_and_largest(values)
    mu = middle_of(lo, hi)
    if params.center == "mean" and not run[1] * HALF - run[0] * HALF > F(2.0**126):
        total = ZERO
        for value in values:
            total = total + value
        mean = total / F(len(values)) + ZERO
        mu = clamp(mean, lo, hi)
    if params.metadata == "f32":
        return mu, at_least_normal(deviation_from(mu, lo, hi))
    steps = STEPS[params.metadata]
    middle, (step, unit) = middle_of(*run), units(params, *run)
    mu_stored = min(max(round(float((mu - middle) / step)), -steps), steps)  # round() takes ties to even
    deviation = deviation_from(centre_of(middle, mu_stored, step), lo, hi)
    quotient, most = deviation / unit, 2 * steps + 1
    sigma_stored = math.ceil(quotient) if quotient < most else most
    if sigma_stored < most and F(sigma_stored) * unit < deviation:
        sigma_stored += 1
    return mu_stored, sigma_stored


def scale_of(params: Params, run: tuple[F, F], stored: tuple[float, float] | None) -> tuple[F, F]:
    """μ̂ and σ̂ of a chunk as the decoder sees them; nothing is stored where they follow from the range."""
    middle = middle_of(*run)
    if stored is None:
        return middle, at_least_normal(deviation_from(middle, *run))
    if params.metadata == "f32":
        return F(stored[0]), F(stored[1])
    step, unit = units(params, *run)
    return centre_of(middle, stored[0], step), min(F(stored[1]) * unit, MAX)


# --- codes -----------------------------------------------------------------------------------------


def code_of(params: Params, value: F, mu: F, sigma: F) -> tuple[int, int]:
    """Q_anc and V_res of a value."""
    r = params.residual_bits
    distance = value - mu
    t = abs(distance) * (ONE / sigma if sigma > 0 else ZERO)
    level = sum(1 for threshold in companding.thresholds(params.alpha, params.levels).tolist() if threshold <= t)
    v_mag = (level + 2 ** (r - 1) - 1) >> r
    v_res = (v_mag << r) - level
    return (-v_mag - 1 if distance < 0 else v_mag), v_res


def value_of(params: Params, q_anc: int, v_res: int | None, run: tuple[F, F], scale: tuple[F, F]) -> F:
    """The anchor reconstruction without V_res, the full one with it."""
    v_mag = -q_anc - 1 if q_anc < 0 else q_anc
    if v_res is None:
        factor = F(params.points[v_mag])
    else:
        level = (v_mag << params.residual_bits) - v_res
        factor = F(companding.levels(params.alpha, params.levels)[level])
    value = scale[0] + (-factor if q_anc < 0 else factor) * scale[1]
    return clamp(value, *run)


# --- streams ---------------------------------------------------------------------------------------


@dataclass
class Page:
    """Everything a page says, by index: sinks[o, t, c], ranges[o, line, run], …, codes[o, t, c]."""

    ranges: dict
    stored: dict
    sinks: dict
    codes: dict


@dataclass
class Model:
    """The codec for one shape: outer indices, tokens, channels."""

    params: Params
    outer: int
    tokens: int
    channels: int
    head: int
    dtype: str
    first_token: int = 0

    def __post_init__(self) -> None:
        self.along_tokens = self.params.axis == "token"
        self.implied = self.params.chunk == self.params.range_size and self.params.center == "midrange"

    def pages(self) -> list[tuple[int, int, int]]:
        """First token, verbatim tokens and coded tokens of every page."""
        if not self.outer * self.channels:
            return []
        sinks = min(max(self.params.sink_tokens - self.first_token, 0), self.tokens)
        result = []
        for start in range(0, self.tokens, self.params.page):
            here = sinks if start == 0 else 0
            result.append((start, here, min(self.params.page, self.tokens - start) - here))
        return result

    def lines(self, coded: int) -> list[tuple[int, list[tuple[int, int]]]]:
        """Number of a line, and token and channel of each of its values."""
        if self.along_tokens:
            return [(c, [(t, c) for t in range(coded)]) for c in range(self.channels)]
        return [(t, [(t, c) for c in range(self.channels)]) for t in range(coded)]

    def runs(self, coded: int) -> list[list[range]]:
        if self.along_tokens:
            return runs_of(coded, self.params, max(coded, 1))
        return runs_of(self.channels, self.params, self.head)

    def order(self, coded: int, groups: int) -> list[tuple[int, int, int]]:
        """Indices (outer, line, group) in the order in which ranges and scales are stored."""
        if self.along_tokens:
            return [(o, c, g) for o in range(self.outer) for g in range(groups) for c in range(self.channels)]
        return [(o, t, g) for o in range(self.outer) for t in range(coded) for g in range(groups)]

    def encode_page(self, x: np.ndarray, start: int, sinks: int, coded: int) -> Page:
        page = Page({}, {}, {}, {})
        for o in range(self.outer):
            for t in range(sinks):
                for c in range(self.channels):
                    page.sinks[o, t, c] = x[o, start + t, c]
            for line, places in self.lines(coded):
                values = [F(x[o, start + sinks + t, c]) for t, c in places]
                chunk_number = 0
                for number, chunks in enumerate(self.runs(coded)):
                    run = smallest_and_largest([values[i] for chunk in chunks for i in chunk])
                    page.ranges[o, line, number] = run
                    for chunk in chunks:
                        stored = None if self.implied else stored_of(self.params, [values[i] for i in chunk], run)
                        page.stored[o, line, chunk_number] = stored
                        chunk_number += 1
                        scale = scale_of(self.params, run, stored)
                        for i in chunk:
                            page.codes[o, *places[i]] = code_of(self.params, values[i], *scale)
        return page

    def groups(self, coded: int) -> tuple[int, int]:
        runs = self.runs(coded)
        return len(runs), sum(len(chunks) for chunks in runs)

    def planes(self, codes: dict, bits: int, coded: int) -> list[bytes]:
        result, shift = [], 0
        for width in PLANES[bits]:
            per_byte, plane = 8 // width, bytearray()
            for o in range(self.outer):
                for first in range(0, coded, per_byte):
                    for c in range(self.channels):
                        byte = 0
                        for t in range(first, min(first + per_byte, coded)):
                            byte |= ((codes[o, t, c] >> shift) % 2**width) << (t - first) * width
                        plane.append(byte)
            result.append(bytes(plane))
            shift += width
        return result

    def anchor_sections(self, page: Page, coded: int) -> list[bytes]:
        runs, chunks = self.groups(coded)
        kind = DTYPES[self.dtype]
        sections = [b"".join(kind(page.ranges[i][end]).tobytes() for i in self.order(coded, runs)) for end in (0, 1)]
        if not self.implied:
            types = {"u8": (np.int8, np.uint8), "u16": (np.int16, np.uint16), "f32": (F, F)}[self.params.metadata]
            sections += [
                b"".join(types[part](page.stored[i][part]).tobytes() for i in self.order(coded, chunks))
                for part in (0, 1)
            ]
        sections.append(b"".join(value.tobytes() for value in page.sinks.values()))
        q_anc = {index: code[0] for index, code in page.codes.items()}
        return sections + self.planes(q_anc, self.params.anchor_bits, coded)

    def encode(self, x: np.ndarray) -> tuple[bytes, bytes]:
        """Both streams of an array of shape (outer, tokens, channels)."""
        anchor = residual = b""
        with np.errstate(all="ignore"):
            for start, sinks, coded in self.pages():
                page = self.encode_page(x, start, sinks, coded)
                anchor += join(self.anchor_sections(page, coded))
                v_res = {index: code[1] for index, code in page.codes.items()}
                residual += join(self.planes(v_res, self.params.residual_bits, coded))
        return anchor, residual

    def decode(self, x: np.ndarray, tier: str, dtype: str) -> np.ndarray:
        """What the streams of `x` decode to, shape (outer, tokens, channels)."""
        out = np.zeros((self.outer, self.tokens, self.channels), DTYPES[dtype])
        with np.errstate(all="ignore"):
            for start, sinks, coded in self.pages():
                page = self.encode_page(x, start, sinks, coded)
                for (o, t, c), value in page.sinks.items():
                    out[o, start + t, c] = value if dtype == self.dtype else narrow(F(value), dtype)
                for line, places in self.lines(coded):
                    for o in range(self.outer):
                        for i, value in self.decode_line(page, (o, line), coded, places, tier):
                            t, c = places[i]
                            out[o, start + sinks + t, c] = narrow(value, dtype)
        return out

    def decode_line(self, page: Page, where: tuple, coded: int, places: list, tier: str) -> Iterator[tuple[int, F]]:
        number = 0
        for run_number, chunks in enumerate(self.runs(coded)):
            run = page.ranges[*where, run_number]
            for chunk in chunks:
                scale = scale_of(self.params, run, page.stored[*where, number])
                number += 1
                for i in chunk:
                    q_anc, v_res = page.codes[where[0], *places[i]]
                    yield i, value_of(self.params, q_anc, v_res if tier == "full" else None, run, scale)


def narrow(value: F, dtype: str) -> np.generic:
    """Rounded to nearest even, saturating at the largest finite value."""
    return DTYPES[dtype](min(max(value, -LARGEST[dtype]), LARGEST[dtype]))


def join(sections: list[bytes]) -> bytes:
    """A page: every section at a multiple of 16, the page's size a multiple of 64."""
    page = b""
    for section in sections:
        page += bytes(-len(page) % 16) + section
    return page + bytes(-len(page) % 64)
