"""Other schemes and ours on the same keys and values: bits, error and speed of each.

    python bench/peers.py --file kv.safetensors --name smollm2

Bits and errors are those of all tensors of the file. Speed is that of one thread on a larger tensor made of them, all
schemes taking turns with each other and with `np.copyto`; bench/README.md has the method.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cache import KINDS, Cache, from_file, synthetic
from environment import RESULTS, environment, load_average
from schemes import ggml
from schemes.registry import CANDIDATES, Candidate
from timing import Operation, figures, interleaved, shown

from lynxq.metrics import ErrorSums
from lynxq.naming import Kind

PACKAGES = (
    "numba", "ml_dtypes", "torch", "libggml-python", "gguf", "zfpy", "blosc2", "zstandard", "numcodecs", "pcodec",
)  # fmt: skip
EXCERPT = Path(str(importlib.resources.files("lynxq"))) / "data" / "smollm2_excerpt.safetensors"


def _quality(candidate: Candidate, cache: Cache, kind: Kind) -> dict[str, Any]:
    """Bits and errors, pooled over all tensors of a kind."""
    nbytes, sums = 0, ErrorSums()
    for x in cache.tensors[kind]:
        peer = candidate.make(x, kind)
        peer.encode()
        peer.decode()
        nbytes += peer.nbytes
        sums += ErrorSums.of(x, peer.out, token_axis=0)
    result: dict[str, Any] = {"bits_per_element": 8 * nbytes / sums.elements}
    if cache.synthetic:
        return result | {"vnmse": None, "centred_vnmse": None, "squared_error": None, "squared_norm": None}
    return result | {
        "vnmse": sums.vnmse,
        "centred_vnmse": sums.centred_vnmse,
        "squared_error": sums.squared_error,
        "squared_norm": sums.squared_norm,
    }


def _runnable(candidates: Iterable[Candidate], cache: Cache, missing: list[dict[str, str]]) -> Iterator[Candidate]:
    """Those that work here on such data, or what stands in for them; the others go to `missing`, with why."""
    for candidate in candidates:
        try:
            for kind in KINDS:
                candidate.make(cache.tensors[kind][0], kind).encode()
            yield candidate
        except Exception as error:  # noqa: BLE001 - whatever a foreign library raises is a reason to report
            installed = not isinstance(error, ModuleNotFoundError)
            reason = f"{type(error).__name__}: {error}" if installed else "not installed"
            print(f"{candidate.title}: {reason} (pip install {candidate.package})")
            missing.append(
                {
                    "peer": candidate.name,
                    "title": candidate.title,
                    "stores": candidate.stores,
                    "package": candidate.package,
                    "reason": reason,
                }
            )
            if candidate.instead is not None:
                yield from _runnable([candidate.instead], cache, missing)


def _speed(
    candidates: list[Candidate], x: np.ndarray[Any, Any], kind: Kind, rounds: int, budget: float
) -> dict[tuple[str, str], dict[str, Any]]:
    """Encode and decode of all of them, in turns."""
    copied = np.empty_like(x)
    operations: dict[tuple[str, str], Operation] = {}
    for candidate in candidates:
        peer = candidate.make(x, kind)
        operations[candidate.name, "encode"] = peer.encode
        operations[candidate.name, "decode"] = peer.decode
    times = interleaved(operations, lambda: np.copyto(copied, x), rounds, budget)
    return {name: figures(found, x.nbytes, 1) for name, found in times.items()}


def measure(cache: Cache, nbytes: int, rounds: int, budget: float) -> dict[str, Any]:
    """Rows of all peers, keys and values."""
    missing: list[dict[str, str]] = []
    candidates = list(_runnable(CANDIDATES, cache, missing))
    rows, speed_on = [], {}
    for kind in KINDS:
        x = cache.large(kind, nbytes)
        speed_on[kind] = {"dims": list(x.shape), "bytes": x.nbytes}
        speed = _speed(candidates, x, kind, rounds, budget)
        for candidate in candidates:
            row = {
                "peer": candidate.name,
                "title": candidate.title,
                "label": candidate.label or candidate.title,
                "stores": candidate.stores,
                "ours": candidate.ours,
                "kind": kind,
                **_quality(candidate, cache, kind),
                **{operation: speed[candidate.name, operation] for operation in ("encode", "decode")},
            }
            rows.append(row)
            error = "" if row["vnmse"] is None else f"vNMSE {row['vnmse']:.1e}"
            print(f"{candidate.title:36} {kind:5} {row['bits_per_element']:6.2f} bits  {error}")
            for operation in ("encode", "decode"):
                print(f"    {operation}  {shown(row[operation])}", flush=True)
    return {"speed_on": speed_on, "rows": rows, "missing": missing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=EXCERPT, help="safetensors file; the packaged excerpt by default")
    parser.add_argument("--synthetic", action="store_true", help="made-up values instead of a file: speed alone")
    parser.add_argument("--name", required=True, help="the result goes to bench/results/peers-NAME.json")
    parser.add_argument("--token-axis", type=int, default=0)
    parser.add_argument("--megabytes", type=float, default=16.0, help="least size of the tensors for speed, in MiB")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds for an operation, if 3 rounds take less")
    options = parser.parse_args()
    load = load_average()
    cache = synthetic() if options.synthetic else from_file(options.file, options.token_axis)
    measured = measure(cache, int(options.megabytes * 2**20), options.rounds, options.budget)
    result = {
        "what": "schemes on bfloat16 keys and values, one thread; medians of rounds interleaved with np.copyto",
        "environment": environment(*PACKAGES),
        "ggml": ggml.build(),
        "load_before": load,
        "load_after": load_average(),
        "data": cache.source,
        **measured,
    }
    target = RESULTS / f"peers-{options.name}.json"
    target.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
