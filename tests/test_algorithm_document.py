"""docs/algorithm.md against the library: constants, tables, presets, and the worked example computed once more."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

import lynxq
from lynxq import Params, companding, dtypes, layout, params, quantizer
from lynxq.backends.sections import page_sections
from tests.test_format_document import tables

TEXT = (Path(__file__).parents[1] / "docs" / "algorithm.md").read_text(encoding="utf-8")
F = np.float32
X = [1.0, 1.5, -2.0, 0.25, 0.0, 3.0, -1.0, 0.5]
EXAMPLE = {"page": 8, "range_size": 8, "chunk": 4, "sink_tokens": 0}


def number(text):
    """A number as the document writes it: 65504, 2^-24, or (2 − 2^-23) · 2^127."""
    text = text.replace("−", "-")
    if match := re.fullmatch(r"\(2 - 2\^(-\d+)\) · 2\^(\d+)", text):
        return (2 - 2.0 ** int(match[1])) * 2.0 ** int(match[2])
    base, _, exponent = text.partition("^")
    return float(base) ** int(exponent or 1)


def floats(cells):
    return np.array([float(cell) for cell in cells], F)


def shortest(value):
    """The shortest decimal that identifies a float32, as the document writes it."""
    return str(F(value))


# --- constants and tables --------------------------------------------------------------------------


def test_constants_are_those_of_the_code():
    (_, rows) = tables(TEXT, "1. Arithmetic")
    assert {row["Name"]: number(row["Value"]) for row in rows} == {
        "MAX": float(quantizer._MAX),
        "MIN_SIGMA": float(quantizer._MIN_SIGMA),
        "MIN_STEP": float(quantizer._MIN_STEP),
        "LARGE": float(quantizer._LARGE),
        "S8": quantizer._STEPS["u8"],
        "S16": quantizer._STEPS["u16"],
        "RATE": float(companding.ANCHOR_DENSITY_RATE),
    }


def test_parameters_are_those_of_the_code():
    rows, presets = tables(TEXT, "2. Parameters")
    described = {row["Parameter"].split()[0]: row for row in rows}
    assert list(described) == list(Params().to_dict())
    for name, default in Params().to_dict().items():
        if default is not None:
            assert described[name]["Default"] == str(default)
    for name, choices in (("axis", params.Axis), ("center", params.Center), ("metadata", params.Metadata)):
        assert described[name]["Values"].split(", ") == list(choices.__args__)
    assert described["alpha"]["Values"] == f"0, or {params.MIN_ALPHA:.0e} … 1e6".replace("e-06", "e-6")
    assert f"{params.MAX_ALPHA:.0e}" == "1e+06"
    for row in presets:
        preset = getattr(Params, row.pop("Preset"))().to_dict()
        assert {name: str(preset[name]) for name in row} == {
            name: str(float(value)) if name == "alpha" else value for name, value in row.items()
        }
        assert (preset["page"], preset["anchor_bits"], preset["residual_bits"]) == (256, 4, 4)
    assert Params.paper().points == tuple(companding.levels(255.0, 112)[::16][:8].tolist())


def test_splits_are_those_of_the_code():
    rows, _, _ = tables(TEXT, "4. Tables")
    splits = [tuple(map(int, row["a + r"].split(" + "))) for row in rows]
    assert tuple(splits) == params.SPLITS
    for (a, r), row in zip(splits, rows, strict=True):
        assert int(row["L"]) == companding.level_count(a, r)
        assert int(row["bins of the anchor, 2^(a−1)"]) == 2 ** (a - 1)
        assert row["planes of the anchor"] == ", ".join(map(str, layout.PLANE_WIDTHS[a]))
        assert row["planes of the residual"] == ", ".join(map(str, layout.PLANE_WIDTHS[r]))


def test_planes_are_those_of_the_code():
    (rows,) = tables(TEXT, "5.9 Bit planes")
    for row in rows:
        widths, low, parts = layout.PLANE_WIDTHS[int(row["b"])], 0, []
        for width in widths:
            parts.append(f"{low}–{low + width - 1}" if width > 1 else f"{low}")
            low += width
        assert row["planes, in order"] == ", ".join(map(str, widths))
        assert row["bits of a code that each holds"] == ", ".join(parts)


def test_table_samples_are_those_of_the_code():
    _, samples, points = tables(TEXT, "4. Tables")
    for row in samples:
        alpha, count = float(row.pop("α")), int(row.pop("L"))
        for name, value in row.items():
            table, k = re.fullmatch(r"(\w+)\[(\d+)\]", name).groups()
            entries = {
                "threshold": [None, *companding.thresholds(alpha, count)],
                "level": companding.levels(alpha, count),
            }
            assert value == shortest(entries[table][int(k)])
    assert [row["a + r"] for row in points] == ["3 + 5", "4 + 4", "5 + 3"]
    for row in points:
        a, r = map(int, row["a + r"].split(" + "))
        quoted = row["point[0], point[1], …"].split(", ")
        assert quoted == [shortest(point) for point in companding.anchor_points(0.5, a, r)]


def test_dtypes_are_those_of_the_code():
    (rows,) = tables(TEXT, "7. Output")
    assert [row["dtype"] for row in rows] == list(dtypes.BY_NAME)
    for row in rows:
        dtype = dtypes.BY_NAME[row["dtype"]]
        assert [number(cell) for cell in list(row.values())[1:]] == [
            dtype.number,
            dtype.itemsize,
            dtype.largest,
            dtype.unit_roundoff,
            dtype.subnormal_roundoff,
        ]


# --- the worked example ----------------------------------------------------------------------------


def run_of_the_example(center):
    """Section 5.2 and 5.3."""
    values = [F(value) for value in X]
    lo, hi = min(values) + F(0), max(values) + F(0)
    half = hi * F(0.5) - lo * F(0.5)
    step = max(half / F(127), F(2.0**-125))
    unit = step * F(0.5) if center == "midrange" else step
    return {"lo": lo, "hi": hi, "middle": lo * F(0.5) + hi * F(0.5), "half": half, "step": step, "unit": unit}


def chunk_of_the_example(values, run, center):
    """Sections 5.4 to 5.6, by the rows of the tables."""
    clo, chi = min(values) + F(0), max(values) + F(0)
    total = F(0)
    for value in values:
        total = total + value
    mu = clo * F(0.5) + chi * F(0.5) if center == "midrange" else min(max(total / F(len(values)), clo), chi)
    quotient = (mu - run["middle"]) / run["step"]
    n = min(max(round(float(quotient)), -127), 127)
    centre = run["middle"] + F(n) * run["step"]
    d = max(chi - centre, centre - clo)
    m = math.ceil(d / run["unit"])
    m += bool(F(m) * run["unit"] < d)
    scale = F(min(m, 255)) * run["unit"]
    return {
        "clo": clo,
        "chi": chi,
        "unit": run["unit"],
        "total": total,
        "μ": mu,
        "(μ − middle) / step": quotient,
        "N": n,
        "μ̂": centre,
        "d": d,
        "d / unit": d / run["unit"],
        "M": min(m, 255),
        "σ̂": scale,
        "reciprocal": F(1) / scale,
    }


def value_of_the_example(x, chunk, run):
    """Sections 5.7, 5.8, 6 and 7, by the columns of the table."""
    distance = x - chunk["μ̂"]
    t = abs(distance) * chunk["reciprocal"]
    level = sum(threshold <= t for threshold in companding.thresholds(0.5, 112))
    v_mag = (level + 7) >> 4
    sign = F(-1) if distance < 0 else F(1)
    near = chunk["μ̂"] + sign * companding.anchor_points(0.5, 4, 4)[v_mag] * chunk["σ̂"]
    full = chunk["μ̂"] + sign * companding.levels(0.5, 112)[level] * chunk["σ̂"]
    near, full = (min(max(value, run["lo"]), run["hi"]) for value in (near, full))
    code = -v_mag - 1 if distance < 0 else v_mag
    return [x, distance, t, level, v_mag, (v_mag << 4) - level, code, near, np.float16(near), full, np.float16(full)]


@pytest.mark.parametrize("center", ["midrange", "mean"])
def test_scales_of_the_worked_example(center):
    runs, first, _, _, second = tables(TEXT, "9. Worked example")
    run = run_of_the_example(center)
    if center == "midrange":
        assert {row["Run"]: row["Value"] for row in runs} == {name: shortest(value) for name, value in run.items()}
    for chunk in (0, 1):
        found = chunk_of_the_example([F(x) for x in X[4 * chunk : 4 * chunk + 4]], run, center)
        for row in first if center == "midrange" else second:
            value = found[row["Chunk"]]
            assert row[str(chunk)] == (str(value) if isinstance(value, int) else shortest(value))


def test_codes_of_the_worked_example():
    _, _, rows, _, _ = tables(TEXT, "9. Worked example")
    run = run_of_the_example("midrange")
    for index, row in enumerate(rows):
        start = index // 4 * 4
        chunk = chunk_of_the_example([F(x) for x in X[start : start + 4]], run, "midrange")
        found = value_of_the_example(F(X[index]), chunk, run)
        for cell, value in zip(row.values(), found, strict=True):
            assert cell == (str(float(value)) if isinstance(value, np.float16) else str(value))
    below, above = map(shortest, companding.thresholds(0.5, 112)[83:85])
    assert f"`threshold[84]` = {below} ≤ t < `threshold[85]` = {above}" in TEXT


def test_streams_of_the_worked_example():
    _, first, rows, sections, second = tables(TEXT, "9. Worked example")
    x = np.array(X, np.float16).reshape(8, 1)
    encoded = lynxq.encode(x, Params(**EXAMPLE), token_axis=0)
    expected = {"anchor": bytearray(128), "residual": bytearray(64)}
    for row in sections:
        stream = "residual" if row["Section"] == "plane of Q_res" else "anchor"
        data = bytes.fromhex(row["Bytes"])
        expected[stream][int(row["Offset"]) : int(row["Offset"]) + len(data)] = data
    assert encoded.anchor.tobytes() == bytes(expected["anchor"])
    assert encoded.residual.tobytes() == bytes(expected["residual"])
    for column, decode in (("anchor", lynxq.decode_anchor), ("full", lynxq.decode_full)):
        wide = decode(encoded, dtype="float32").ravel()
        assert [row[f"{column} value"] for row in rows] == [shortest(value) for value in wide]
        assert [float(row[f"{column} float16"]) for row in rows] == decode(encoded).ravel().tolist()
    for center, table in (("midrange", first), ("mean", second)):
        encoded = lynxq.encode(x, Params(center=center, **EXAMPLE), token_axis=0)
        stored = page_sections(encoded.layout, encoded.anchor, "anchor", 0)
        quoted = {row["Chunk"]: [int(row["0"]), int(row["1"])] for row in table if row["Chunk"] in ("N", "M")}
        assert quoted == {"N": stored["mu"].ravel().tolist(), "M": stored["sigma"].ravel().tolist()}


# --- statements ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "r"), params.SPLITS)
def test_every_level_fits_both_streams(a, r):
    """Section 5.8: V_mag and V_res are within their limits for every I."""
    for level in range(companding.level_count(a, r) + 1):
        v_mag = (level + 2 ** (r - 1) - 1) >> r
        assert 0 <= v_mag <= 2 ** (a - 1) - 1
        assert -(2 ** (r - 1)) <= (v_mag << r) - level <= 2 ** (r - 1) - 1
    assert v_mag == 2 ** (a - 1) - 1


def test_centres_at_the_end_of_float32():
    """Section 5.5: μ̂ is clamped, and the scale is counted from there."""
    largest = np.finfo(F).max
    x = np.full((64, 1), -largest, F)
    x[32:] = largest
    x[40] = largest * F(0.9995)
    encoded = lynxq.encode(x, Params(page=64, range_size=64, sink_tokens=0), token_axis=0)
    stored = page_sections(encoded.layout, encoded.anchor, "anchor", 0)
    assert stored["mu"].ravel().tolist() == [-127, 127]
    assert stored["sigma"].ravel().tolist() == [0, 1]
