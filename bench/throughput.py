"""Speed of our own operations against a plain copy: python bench/throughput.py [--quick].

Every measurement is taken in turn with `np.copyto` of the same array, in one process, with warm buffers and `out=`;
what is reported are medians. One thread is also measured in processor time; two threads need a machine that is idle
otherwise (see `load_before`). bench/README.md has the method.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from environment import RESULTS, environment, load_average
from gains import gains, yardsticks
from shapes import MAIN_SHAPE, SHAPES, Shape
from storage import container_operations, default_directory, filesystem, threads_of_load
from timing import Operation, figures, interleaved, shown

import lynxq
from lynxq import Params, backends

PRESETS = {"keys": Params.keys(), "values": Params.values()}
#: The reference backend takes about 60 copies for a single operation.
REFERENCE_ROUNDS = 5


def _codec_operations(
    x: np.ndarray[Any, Any], encoded: lynxq.Encoded, out: np.ndarray[Any, Any], backend: str, threads: int
) -> dict[str, Operation]:
    options: dict[str, Any] = {"backend": backend, "threads": threads}
    axis = encoded.token_axis
    return {
        "encode": lambda: lynxq.encode(x, encoded.params, token_axis=axis, out=encoded, **options),
        "decode_full": lambda: lynxq.decode_full(encoded, out=out, **options),
        "decode_anchor": lambda: lynxq.decode_anchor(encoded, out=out, **options),
    }


def measure(
    shape: Shape, *, tokens: int, threads: int, rounds: int, backend: str, directory: Path | None
) -> list[dict[str, Any]]:
    """All operations on a tensor of a shape, for both presets; those on containers if there is a directory."""
    x, axis = shape.tensor(tokens)
    out, copied = np.empty_like(x), np.empty_like(x)
    rows = []
    for preset, params in PRESETS.items():
        encoded = lynxq.encode(x, params, token_axis=axis, backend=backend, threads=threads)
        operations = _codec_operations(x, encoded, out, backend, threads)
        with tempfile.TemporaryDirectory(dir=directory) as folder, threads_of_load(threads):
            if directory is not None:
                operations |= container_operations(Path(folder) / "x.lynx", encoded, out, backend)
            times = interleaved(operations, lambda: np.copyto(copied, x), rounds)
        rows += [
            {
                "shape": shape.name,
                "dims": list(x.shape),
                "tokens": tokens,
                "preset": preset,
                "operation": name,
                "threads": threads,
                "backend": backend,
                **figures(found, x.nbytes, threads),
            }
            for name, found in times.items()
        ]
    for row in rows:
        name = f"{row['shape']:28} {row['preset']:6} {row['operation']:13}"
        print(f"{name} {row['threads']} thread(s) {shown(row)}", flush=True)
    return rows


def scaling(shape: Shape, *, tokens: int, threads: int, backend: str) -> dict[str, Any]:
    """What several threads gain over one, for both presets, and what they could gain on this machine."""
    x, axis = shape.tensor(tokens)
    out = np.empty_like(x)
    rows = []
    for preset, params in PRESETS.items():
        encoded = lynxq.encode(x, params, token_axis=axis, backend=backend)
        one, several = (_codec_operations(x, encoded, out, backend, count) for count in (1, threads))
        for name in one:
            row = {"preset": preset, "operation": name, **gains(one[name], several[name], threads)}
            print(preset, row, flush=True)
            rows.append(row)
    return {"shape": shape.name, "threads": threads, "rows": rows, "yardsticks": yardsticks(x, threads)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one shape, few rounds, nothing written")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--backend", default=backends.get().name)
    parser.add_argument("--directory", type=Path, default=default_directory(), help="where containers are written")
    parser.add_argument("--output", type=Path, default=RESULTS / "throughput-cpu.json")
    options = parser.parse_args()
    shapes, rounds = (SHAPES[:1], 5) if options.quick else (SHAPES, options.rounds)
    load = load_average()
    rows = []
    for shape in shapes:
        for threads in options.threads:
            rows += measure(
                shape,
                tokens=options.tokens,
                threads=threads,
                rounds=rounds,
                backend=options.backend,
                directory=options.directory,
            )
    print("reference backend:")
    reference = measure(
        MAIN_SHAPE, tokens=options.tokens, threads=1, rounds=REFERENCE_ROUNDS, backend="reference", directory=None
    )
    scaled = scaling(MAIN_SHAPE, tokens=options.tokens, threads=2, backend=options.backend)
    if options.quick:
        return
    result = {
        "what": "bfloat16 tensors of one layer; medians of rounds interleaved with np.copyto of the same array",
        "backend": options.backend,
        "rounds": rounds,
        "environment": environment("numba", "llvmlite", "ml_dtypes", "xxhash"),
        "processors": os.cpu_count(),
        "load_before": load,
        "load_after": load_average(),
        "containers": {
            "directory": str(options.directory),
            "filesystem": filesystem(options.directory),
            "page_cache": "warm",
        },
        "main_shape": MAIN_SHAPE.name,
        "rows": rows,
        "reference_rows": reference,
        "scaling": scaled,
    }
    options.output.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(options.output)


if __name__ == "__main__":
    main()
