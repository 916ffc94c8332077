"""All measurements, figures and tables in order: python bench/run_all.py --file kv.safetensors.

Takes less than 15 minutes on two cores, and half an hour more with `--text`, which needs the extra lab. Nothing else
should run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

_HERE = Path(__file__).parent


def _run(script: str, *arguments: str) -> None:
    """A script in a process of its own, on the code of this checkout."""
    paths = [str(_HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    start = time.perf_counter()
    print(f"--- {script} {' '.join(arguments)}", flush=True)
    command = [sys.executable, str(_HERE / script), *arguments]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
    print(f"--- {script}: {time.perf_counter() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True, help="safetensors file with keys and values")
    parser.add_argument(
        "--name", help="of the results on this file; by default what its name has before the first underscore"
    )
    parser.add_argument("--token-axis", type=int, default=0)
    parser.add_argument("--text", action="append", default=[], help="text for a language model, as in quality_lm.py")
    parser.add_argument("--calibrate", help="text to calibrate on, as in quality_lm.py")
    options = parser.parse_args()
    file, axis = str(options.file), str(options.token_axis)
    name = options.name or options.file.stem.partition("_")[0]
    start = time.perf_counter()
    _run("quality.py", file, "--name", name, "--token-axis", axis)
    _run("throughput.py")
    _run("peers.py", "--file", file, "--name", name, "--token-axis", axis)
    _run("plots.py", "--name", name)
    _run("readme.py")
    if options.text:
        if not options.calibrate:
            parser.error("--text needs --calibrate, a text that is not scored")
        read = [argument for text in options.text for argument in ("--text", text)]
        _run("quality_lm.py", "--name", name, *read, "--calibrate", options.calibrate)
        _run("ablation.py", "--name", name, *read, "--fit", options.calibrate)
        _run("results.py", "--name", name)
    print(f"all: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
