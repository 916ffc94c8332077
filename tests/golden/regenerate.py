"""Write the golden files of the current format. Run by hand (python -m tests.golden.regenerate), never by tests.

Existing entries and files are kept: a golden value changes only together with the format version. To replace one,
delete it first, and say in the commit why that is right.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import lynxq
from lynxq import Encoded
from tests.golden.cases import CASES, Case, digest

FOLDER = Path(__file__).parent
CHECKSUMS = FOLDER / "checksums.json"
FILES = FOLDER / "v1.0"

#: Containers of small cases: name of the file and the cases in it.
CONTAINERS = {
    "mixed": ("custom-points", "alpha-linear", "alpha-large", "flat-heads"),
    "splits": tuple(name for name in CASES if name.startswith(("token", "channel")) and name.endswith("u8")),
    "wide-metadata": tuple(name for name in CASES if name.startswith("token-4") and not name.endswith("u8")),
}


def encode(case: Case) -> Encoded:
    return lynxq.encode(case.make(), case.params, token_axis=case.token_axis, backend="reference", **case.options)


def checksums(case: Case) -> dict[str, str]:
    """Input, streams and decodes apart, so that a difference says which half broke."""
    encoded = encode(case)
    return {
        "input": digest(case.make()),
        "anchor": digest(encoded.anchor),
        "residual": digest(encoded.residual),
        "decode_anchor": digest(lynxq.decode_anchor(encoded, backend="reference")),
        "decode_full": digest(lynxq.decode_full(encoded, backend="reference")),
    }


def container(names: tuple[str, ...]) -> bytes:
    file = io.BytesIO()
    lynxq.save(file, {name: encode(CASES[name]) for name in names}, metadata={"made by": "lynxq", "format": "1.0"})
    return file.getvalue()


def main() -> None:
    known = json.loads(CHECKSUMS.read_text(encoding="utf-8")) if CHECKSUMS.exists() else {}
    for name, case in CASES.items():
        if name not in known:
            known[name] = checksums(case)
            print("new checksum:", name)
    CHECKSUMS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    FILES.mkdir(exist_ok=True)
    for name, cases in CONTAINERS.items():
        path = FILES / f"{name}.lynx"
        if not path.exists():
            path.write_bytes(container(cases))
            print("new file:", path.name)


if __name__ == "__main__":
    main()
