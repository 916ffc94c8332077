"""The file that docs/format.md ends with: ``python docs/examples/format_example.py`` prints its hex dump.

The bytes depend on nothing but this script and the format. With a path as argument it writes the file, too.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np

import lynxq

NAME = "key"
METADATA = {"model": "toy"}
PARAMS = lynxq.Params(page=8, range_size=8, chunk=4, sink_tokens=1)

#: Ten tokens of two channels, float16. Token 0 is a sink, tokens 8 and 9 make a short last page.
VALUES = (
    (8.0, -0.5),
    (1.0, 4.0),
    (1.5, 3.0),
    (-2.0, 3.5),
    (0.25, 5.0),
    (0.0, 4.5),
    (3.0, 4.25),
    (-1.0, -11.0),
    (0.5, 2.0),
    (-0.5, 2.0),
)


def tensor() -> np.ndarray:
    """The tensor that the file holds, shape (10, 2)."""
    return np.array(VALUES, dtype=np.float16)


def file_bytes() -> bytes:
    """The whole file."""
    file = io.BytesIO()
    lynxq.save(file, {NAME: lynxq.encode(tensor(), PARAMS, token_axis=0)}, metadata=METADATA)
    return file.getvalue()


def hex_dump(data: bytes) -> str:
    """Offset and 16 bytes a line; no line is left out."""
    rows = (f"{offset:04x}  {data[offset : offset + 16].hex(' ')}" for offset in range(0, len(data), 16))
    return "\n".join(rows)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        Path(path).write_bytes(file_bytes())
    print(hex_dump(file_bytes()))
