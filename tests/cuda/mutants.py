"""Kernels broken on purpose: ``python -m tests.cuda.mutants NAME FOLDER`` fails if the broken kernels are noticed.

A mutant may write anywhere, so each one runs in a process of its own; a crash is a way to be noticed.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

from lynxq import Params
from lynxq.layout import Layout
from tests.cuda import cases, host
from tests.cuda.test_kernels import far_apart

#: name: (file, text, what it becomes, the cases to look at)
MUTANTS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "threshold strictly below": (
        "codes.cuh",
        "level[word] = below + (BYTES_OF(1) ^",
        "level[word] = below + (0u &",
        ("keys",),
    ),
    "no bias before the split": ("codes.cuh", "BYTES_OF((1 << (RESIDUAL_BITS - 1)) - 1)) >>", "0u) >>", ("keys",)),
    "residual of another sign": (
        "codes.cuh",
        "(BYTES_OF(mask + 1) - (level & BYTES_OF(mask)))",
        "(level & BYTES_OF(mask))",
        ("keys",),
    ),
    "negative zero has a sign": (
        "codes.cuh",
        "return mu == 0.0f ? -0.0f : mu;",
        "return mu;",
        ("zeros", "mean", "mean float32"),
    ),
    "sigma rounded to nearest": (
        "numeric.cuh",
        "if (__fmul_rn(sigma, unit) < dev) sigma = __fadd_rn(sigma, 1.0f);",
        "",
        ("keys float32", "6+2", "chunk 3", "channel 6+2"),
    ),
    "division by multiplication": (
        "numeric.cuh",
        "__fdiv_rn(half_range(lo, hi), STEPS)",
        "__fmul_rn(half_range(lo, hi), 1.0f / STEPS)",
        ("keys", "keys float32", "6+2", "3+5"),
    ),
    "reciprocal left out": (
        "numeric.cuh",
        "return sigma > 0.0f ? __fdiv_rn(1.0f, sigma) : 0.0f;",
        "return sigma > 0.0f ? __fdiv_rn(1.000001f, sigma) : 0.0f;",
        ("keys float32", "values", "keys"),
    ),
    "clamp at the lower end lost": (
        "numeric.cuh",
        "return fminf(fmaxf(value, lo), hi);",
        "return fminf(value, hi);",
        ("keys", "values", "mean", "constant", "channel 5+3"),
    ),
    "subnormal scales allowed": ("numeric.cuh", "fmaxf(dev, MIN_SIGMA)", "dev", ("values subnormals",)),
    "output not saturated": (
        "numeric.cuh",
        "return fminf(fmaxf(value, -largest), largest);",
        "return value;",
        ("into float16", "into bfloat16"),
    ),
    "last strip of a page": ("pages.cuh", "left < STRIP ? (int)left : STRIP", "STRIP", ("keys", "values")),
    "gaps keep what they held": (
        "pages.cuh",
        "for (i64 k = kind.end[which] + thread; k < kind.next[which]; k += threads) page[k] = 0;",
        "",
        ("keys", "odd channels"),
    ),
    "sinks of every page": (
        "address.cuh",
        "view.sinks = page == 0 ? (int)plan.sinks : 0;",
        "view.sinks = (int)plan.sinks;",
        ("keys",),
    ),
    "page offset without the first page": (
        "address.cuh",
        "plan.first_anchor + (page - 1) * plan.full_anchor",
        "page * plan.full_anchor",
        ("keys", "3+5"),
    ),
    "32-bit token offset": (
        "address.cuh",
        "return column + token * plan.token_stride;",
        "return column + (int)(token * plan.token_stride);",
        (),
    ),
    "range of the next run": (
        "encode_token.cuh",
        "run = chunk / RUN_CHUNKS",
        "run = (chunk + 1) / RUN_CHUNKS",
        ("mean", "3+5", "keys"),
    ),
    "missing barrier": (
        "encode_token.cuh",
        "        chunk_reciprocal[chunk][c] = inverse;\n    }\n    __syncthreads();",
        "        chunk_reciprocal[chunk][c] = inverse;\n    }",
        ("keys",),
    ),
    "missing barrier between sums": (
        "encode_token.cuh",
        "                shared = sum;\n            }\n        }\n        __syncthreads();",
        "                shared = sum;\n            }\n        }",
        ("mean", "paper"),
    ),
    "chunk ends with the warp": (
        "encode_channel.cuh",
        "combined(extremes(value[i], inside), 1, CHUNK_LANES)",
        "combined(extremes(value[i], inside), 1, CHUNK_LANES / 2)",
        ("values", "channel mean"),
    ),
    "idle lanes count": (
        "encode_channel.cuh",
        "return {inside ? pair : VALUE_TYPE == FLOAT16 ? 0x7c007c00u : 0x7f807f80u};",
        "return {pair};",
        ("values head 80 positive",),
    ),
    "sum taken from the first lane": (
        "encode_channel.cuh",
        "turn ? turn - 1 : 0, CHUNK_LANES)",
        "0, CHUNK_LANES)",
        ("channel mean", "channel mean short head"),
    ),
    "sum in another order": (
        "encode_plain.cuh",
        "for (i64 k = begin; k < end; ++k) {\n        const float x = walk.at(k);",
        "for (i64 k = end - 1; k >= begin; --k) {\n        const float x = walk.at(k);",
        ("plain mean",),
    ),
    "scales of the strip's first token": (
        "decode.cu",
        "(strip * STRIP + i) % CHUNK == 0)",
        "(strip * STRIP + i) % CHUNK == CHUNK)",
        ("chunk 4", "chunk 3", "run 1"),
    ),
    "tail not zeroed": ("decode.cu", "store_values(rows.step(), zero);", "rows.step();", ("valid tokens",)),
    "first of the non-finite": ("nonfinite.cu", "atomicMin(plan.report + 1, first);", "plan.report[1] = first;", ()),
}


def mutated(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of the kernels with one change."""
    target = folder / "kernels"
    shutil.copytree(host.KERNELS, target)
    text = (target / file).read_text(encoding="utf-8")
    assert text.count(old) >= 1, f"{file} has no {old!r}: the mutant is out of date"
    (target / file).write_text(text.replace(old, new), encoding="utf-8")
    return target


def noticed(name: str, folder: Path) -> bool:
    """Whether a mutant's bytes differ from the reference in its cases, in any of three thread orders."""
    if name == "32-bit token offset":
        return not far_apart(host.backend(folder=folder))
    if name == "first of the non-finite":
        x = np.zeros((300, 16), np.float32)
        x[[3, 290], 5] = np.nan
        layout = Layout.of(Params.keys(), x.shape, "float32", token_axis=0)
        return any(
            host.backend(order=order, folder=folder).first_nonfinite(layout, x) != (2, (3, 5)) for order in (0, 1)
        )
    return any(
        cases.differs(lambda order=order: host.backend("source", order, folder=folder), cases.CASES[case], seed)
        for case in MUTANTS[name][3]
        for order in (0, 1, 7)
        for seed in (0, 1, 2)
    )


if __name__ == "__main__":
    sys.exit(noticed(sys.argv[1], Path(sys.argv[2])))
