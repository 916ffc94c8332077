"""Bits and errors of all methods on keys and values: python bench/quality.py kv.safetensors --name smollm2."""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from environment import RESULTS, environment

from lynxq import evaluate
from lynxq.tensorfile import open_tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="safetensors file, tensors named key or value")
    parser.add_argument("--name", required=True, help="the result goes to bench/results/quality-NAME.json")
    parser.add_argument("--token-axis", type=int, default=0)
    options = parser.parse_args()
    with open_tensors(options.file) as file:
        rows = evaluate.evaluate(file.items(), list(evaluate.METHODS), token_axis=options.token_axis)
        metadata = file.metadata
    result = {
        "environment": environment("ml_dtypes"),
        "data": {
            "file": options.file.name,
            "sha256": hashlib.sha256(options.file.read_bytes()).hexdigest(),
            "metadata": metadata,
        },
        "titles": {name: method.title for name, method in evaluate.METHODS.items()},
        "rows": [asdict(row) | {"bits_per_element": row.bits_per_element} for row in rows],
    }
    for row in rows:
        print(
            f"{row.method:6} {row.tier:7} {row.kind:6} {row.bits_per_element:7.3f} bits  "
            f"vNMSE {row.vnmse:.2e}  centred {row.centred_vnmse:.2e}"
        )
    target = RESULTS / f"quality-{options.name}.json"
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
