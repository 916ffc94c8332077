"""Facts about the compiled CUDA kernels, without a GPU: ``python bench/cubins.py`` writes the table of docs/cuda.md.

Registers, local and shared memory are what cuobjdump says of the cubins that NVRTC makes. Blocks per multiprocessor
follow from them. Bytes are those that a value needs at least: the input once, the streams once, the output once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from sections import update

from lynxq import Params
from lynxq.backends.cuda import nvrtc
from lynxq.backends.cuda.memory import Memory
from lynxq.backends.cuda.plan import plan
from lynxq.layout import Layout
from tests.cuda.tools import resources

#: Of a multiprocessor of compute capability 9.0: registers, threads, bytes of shared memory.
REGISTERS, THREADS, SHARED = 65536, 2048, 228 * 1024
#: Copy bandwidth that the floor is worked out for, an assumption: read and written bytes per second.
COPY = 4.3e12
PRESETS = {"keys": Params.keys(), "values": Params.values(), "paper": Params.paper()}


def _resident(used: dict[str, int], threads: int) -> int:
    """Blocks that a multiprocessor holds at once."""
    registers = -(-used["REG"] // 8) * 8 * threads
    return min(REGISTERS // registers, THREADS // threads, SHARED // max(used["SHARED"], 1))


def rows() -> list[dict[str, Any]]:
    """One for each kernel, preset and dtype."""
    result = []
    for preset, params in PRESETS.items():
        for dtype in ("bfloat16", "float32"):
            layout = Layout.of(params, (32768, 8, 128), dtype, token_axis=0)
            size = layout.dtype.itemsize
            memory = Memory.of(1 << 20, layout.shape, (1024 * size, 128 * size, size), 0)
            high, low = (layout.stream_size(stream) / layout.elements for stream in ("anchor", "residual"))
            for operation, count in (
                ("encode", size + high + low),
                ("decode_full", size + high + low),
                ("decode_anchor", size + high),
            ):
                launch = plan(operation, layout, memory, layout.dtype, anchor=1 << 30, residual=1 << 31)
                if launch is None:
                    continue
                row: dict[str, Any] = {"preset": preset, "dtype": dtype, "operation": operation, "bytes": count}
                for architecture in (80, 90):
                    cubin = nvrtc.compile_unit(launch.unit, launch.defines, architecture).cubin
                    row[architecture] = resources(cubin)[launch.kernel]
                row["threads"] = launch.threads
                row["resident"] = _resident(row[90], launch.threads)
                result.append(row)
    return result


def table() -> str:
    """The rows as Markdown."""
    columns = ("kernel", "preset", "dtype", "registers sm_80 / sm_90", "spilled", "shared", "blocks of 256")
    columns += ("bytes per value", "ns")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows():
        spilled = max(row[a]["STACK"] + row[a]["LOCAL"] for a in (80, 90))
        lines.append(
            f"| {row['operation']} | {row['preset']} | {row['dtype']} | {row[80]['REG']} / {row[90]['REG']} "
            f"| {spilled} | {row[90]['SHARED']} | {row['resident']} | {row['bytes']:.2f} "
            f"| {row['bytes'] / COPY * 1e12:.2f} |"
        )
    version = ".".join(map(str, nvrtc.version()))
    return "\n".join([*lines, "", f"Written by `bench/cubins.py` with NVRTC {version}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if docs/cuda.md is not up to date")
    options = parser.parse_args()
    update("docs/cuda.md", {"cubins": table()}, check=options.check)


if __name__ == "__main__":
    main()
