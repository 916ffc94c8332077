"""Everything to find out on a machine with an NVIDIA GPU, in one call: ``python bench/gpu.py``.

NOT YET RUN ON HARDWARE: no figure in this repository comes from this script so far.

In less than five minutes: the GPU tests, the memory checkers of compute-sanitizer where it is installed, the copy
bandwidth of the device, then encode and both decodes of several tensors and of a few peers. Times are medians of
events on one stream, in one run, with buffers reused. A fraction is that of the copy bandwidth, counting the fewest
bytes: input once, streams once, output once. Prints a table and writes ``bench/results/gpu-<device>.json``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from environment import RESULTS, environment

import lynxq
from lynxq import Params, backends

ROOT = Path(__file__).parent.parent
#: name: (shape, token axis, options); bfloat16
TENSORS: dict[str, tuple[tuple[int, ...], int, dict[str, int]]] = {
    "NHD, 8 heads of 128": ((32768, 8, 128), 0, {}),
    "HND, 8 heads of 128": ((1, 8, 32768, 128), 2, {}),
    "LMCache, 32 layers": ((2, 32, 4096, 1024), 2, {"head_dim": 128}),
    "MLA, 576 channels": ((65536, 576), 0, {}),
    "one sequence of 2048": ((2048, 8, 128), 0, {}),
}
PRESETS = {"keys": Params.keys(), "values": Params.values()}


class Clock:
    """Median milliseconds of work on the current stream."""

    def __init__(self, cupy: Any, repeats: int) -> None:
        self._cupy, self._repeats = cupy, repeats
        self._flush = cupy.empty(256 << 20, np.uint8)  # larger than any cache

    def __call__(self, work: Callable[[], object]) -> float:
        events = self._cupy.cuda
        for _ in range(3):
            work()
        times = []
        for _ in range(self._repeats):
            self._flush.fill(0)  # a decode must not find its streams in the cache
            start, stop = events.Event(), events.Event()
            start.record()
            work()
            stop.record()
            stop.synchronize()
            times.append(events.get_elapsed_time(start, stop))
        return statistics.median(times)


def copy_bandwidth(cupy: Any, clock: Clock) -> float:
    """Bytes read and written per second by a copy on the device."""
    size = 1 << 30
    source, target = cupy.zeros(size, np.uint8), cupy.empty(size, np.uint8)
    milliseconds = clock(lambda: target.data.copy_from_device_async(source.data, size))
    return 2 * size / milliseconds * 1e3


def lynx(torch: Any, clock: Clock, limit: float) -> list[dict[str, Any]]:
    """encode, decode_full and decode_anchor of every tensor and preset."""
    rows = []
    for name, (shape, axis, options) in TENSORS.items():
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for preset, params in PRESETS.items():
            encoded = lynxq.encode(x, params, token_axis=axis, check=False, **options)
            out = torch.empty_like(x)
            high, low = encoded.layout.stream_size("anchor"), encoded.layout.stream_size("residual")

            def encode(x=x, params=params, axis=axis, options=options, encoded=encoded):
                lynxq.encode(x, params, token_axis=axis, check=False, out=encoded, **options)

            size = x.numel() * x.element_size()
            for what, work, count in (
                ("encode", encode, size + high + low),
                ("decode_full", lambda e=encoded, o=out: lynxq.decode_full(e, out=o), size + high + low),
                ("decode_anchor", lambda e=encoded, o=out: lynxq.decode_anchor(e, out=o), size + high),
            ):
                milliseconds = clock(work)
                rate = count / milliseconds * 1e3
                rows.append(
                    {"what": f"lynxq {what}, {preset}", "tensor": name, "milliseconds": milliseconds, "bytes": count}
                    | {"bytes_per_second": rate, "fraction_of_copy": rate / limit}
                )
    return rows


def _kivi(torch: Any, x: Any) -> tuple[Any, Any, Any]:
    """KIVI's 4 bits for keys as plain torch: groups of 32 tokens of a channel, minimum and step in float16."""
    groups = x.view(-1, 32, x[0].numel()).float()
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    step = ((high - low) / 15).clamp_min(1e-8)
    codes = ((groups - low) / step).round().clamp(0, 15).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, low.half(), step.half()


def peers(torch: Any, clock: Clock, limit: float) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Other ways to make a cache smaller, of this machine's packages, and why one is not there."""
    shape = TENSORS["NHD, 8 heads of 128"][0]
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    size = x.numel() * 2
    works: dict[str, tuple[Callable[[], object], int]] = {
        "torch fp8 cast": (lambda: x.to(torch.float8_e4m3fn), size * 3 // 2),
        "torch KIVI-4 quantize and pack": (lambda: _kivi(torch, x), size + size // 4 + size // 16),
    }
    missing = {}
    try:
        from bitsandbytes.functional import quantize_4bit

        works["bitsandbytes fp4, blocks of 64"] = (
            lambda: quantize_4bit(x, blocksize=64),
            size + size // 4 + size // 32,
        )
    except Exception as error:  # noqa: BLE001 - whatever a package raises where it does not fit the machine
        missing["bitsandbytes"] = str(error)
    try:
        from vllm import _custom_ops

        flat = x.view(-1, shape[-1])
        works["vLLM fp8 quantize"] = (lambda: _custom_ops.scaled_fp8_quant(flat), size * 3 // 2)
    except Exception as error:  # noqa: BLE001
        missing["vllm"] = str(error)
    rows = []
    for name, (work, count) in works.items():
        try:
            milliseconds = clock(work)
        except Exception as error:  # noqa: BLE001
            missing[name] = str(error)
            continue
        rate = count / milliseconds * 1e3
        rows.append(
            {"what": name, "tensor": "NHD, 8 heads of 128", "milliseconds": milliseconds, "bytes": count}
            | {"bytes_per_second": rate, "fraction_of_copy": rate / limit}
        )
    return rows, missing


def _run(*words: str, seconds: int) -> str:
    """Last line of a command's output, and how it ended."""
    try:
        run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds} s"
    lines = (run.stdout + run.stderr).strip().splitlines() or ["no output"]
    return f"exit {run.returncode}: {lines[-1]}"


def checks() -> dict[str, str]:
    """The GPU tests, and the memory checkers."""
    result = {"tests": _run(sys.executable, "-m", "pytest", "-q", "tests/cuda/test_gpu.py", seconds=120)}
    for tool in ("memcheck", "racecheck"):
        if shutil.which("compute-sanitizer"):
            words = (
                "compute-sanitizer",
                "--tool",
                tool,
                "--error-exitcode",
                "9",
                sys.executable,
                "-m",
                "tests.cuda.gpu",
            )
            result[tool] = _run(*words, "keys", "values", "mean", seconds=60)
        else:
            result[tool] = "compute-sanitizer is not installed"
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-checks", action="store_true", help="measure only")
    options = parser.parse_args()
    reason = backends.available()["cuda"]
    if reason is not None:
        sys.exit(f"nothing measured: {reason}")
    import cupy
    import torch

    begin = time.monotonic()
    torch.cuda.set_stream(torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr))  # one stream for all events
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    result: dict[str, Any] = {
        "device": device,
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "environment": environment("cupy-cuda13x", "torch", "nvidia-cuda-nvrtc"),
        "checks": {} if options.no_checks else checks(),
    }
    clock = Clock(cupy, options.repeats)
    result["copy_bytes_per_second"] = limit = copy_bandwidth(cupy, clock)
    rows = lynx(torch, clock, limit)
    others, result["not_measured"] = peers(torch, clock, limit)
    result["rows"] = rows + others
    result["seconds"] = time.monotonic() - begin

    for name, outcome in result["checks"].items():
        print(f"{name}: {outcome}")
    print(f"{device}: copy {limit / 1e12:.2f} TB/s")
    for row in result["rows"]:
        print(
            f"{row['what']:32} {row['tensor']:22} {row['milliseconds']:9.3f} ms "
            f"{row['bytes_per_second'] / 1e9:8.0f} GB/s {row['fraction_of_copy']:6.1%}"
        )
    path = RESULTS / f"gpu-{re.sub(r'[^a-z0-9]+', '-', device.lower()).strip('-')}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path.relative_to(ROOT)} in {result['seconds']:.0f} s")


if __name__ == "__main__":
    main()
