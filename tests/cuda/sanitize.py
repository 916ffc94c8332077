"""Run the kernels under a sanitizer: ``python -m tests.cuda.sanitize asan``.

The address and thread sanitizers follow one OS thread for each CUDA thread, and must be in the process from the start,
which `command` takes care of. A data race of the kernels is a data race for the thread sanitizer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace

from tests.cuda import cases, host

#: Of every case a tensor so small that a thousand OS threads are enough.
_TOKENS = 40
NAMES = {
    "ubsan": tuple(cases.CASES),
    "asan": (*cases.FEW, "valid tokens", "unaligned", "keys head first"),
    "tsan": ("keys", "mean", "values", "channel mean", "chunk 3"),
}


def command(mode: str) -> tuple[list[str], dict[str, str]]:
    """What to run, and the environment of it."""
    words, environment = [sys.executable, "-m", "tests.cuda.sanitize", mode], dict(os.environ)
    if mode in ("asan", "tsan"):
        library = [str(host.compiler()), f"-print-file-name=lib{mode}.so"]
        environment["LD_PRELOAD"] = subprocess.run(library, check=True, capture_output=True, text=True).stdout.strip()
        environment["ASAN_OPTIONS"] = "detect_leaks=0"
        environment["TSAN_OPTIONS"] = "exitcode=66 halt_on_error=1"
    if mode == "tsan" and shutil.which("setarch"):
        words = ["setarch", "-R", *words]  # the sanitizer does not know all ways in which addresses are randomised
    return words, environment


def main(mode: str, folder: str = str(host.KERNELS)) -> None:
    for name in NAMES[mode]:
        case = cases.CASES[name]
        if mode != "ubsan":
            shape = list(case.shape)
            shape[case.token_axis] = min(shape[case.token_axis], _TOKENS)
            options = {key: min(value, _TOKENS) for key, value in case.options.items() if key == "valid_tokens"}
            case = replace(case, shape=tuple(shape), options={**case.options, **options})
        cases.check(host.backend(mode=mode, folder=host.Path(folder)), case)
    print(f"{mode}: {len(NAMES[mode])} cases")


if __name__ == "__main__":
    main(*sys.argv[1:])
