"""The real NIXL between two processes, if asked for, and what is said where it is missing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from lynxq.errors import MissingLibraryError
from lynxq.stream.nixl import NixlAgent
from tests.environments import environment

SLOW = "LYNXQ_SLOW_TESTS"


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in ("nixl", "nixl_cu12", "nixl_cu13")), reason="NIXL is installed"
)
def test_it_says_what_is_missing():
    with pytest.raises(MissingLibraryError, match="nixl"):
        NixlAgent()


@pytest.fixture(scope="module")
def python():
    python = environment("nixl", ["numpy"], without_dependencies=["nixl-cu12==1.5.1"])
    subprocess.run([python, "-m", "lynxq", "warmup"], check=True)
    return python


@pytest.mark.skipif(SLOW not in os.environ, reason=f"makes an environment of 600 MB: set {SLOW}=1")
@pytest.mark.parametrize("scenario", ["transfer", "anchors", "cancel", "killed-receiver", "killed-sender"])
@pytest.mark.parametrize("transport", ["", "tcp"])
def test_two_processes(tmp_path, python, scenario, transport):
    script = Path(__file__).with_name("nixl_processes.py")
    variables = {**os.environ, "PYTHONPATH": "", **({"UCX_TLS": transport} if transport else {})}
    pipe, codes = subprocess.PIPE, {}
    with (tmp_path / "decode").open("w+") as decode_log, (tmp_path / "prefill").open("w+") as prefill_log:
        command = [python, script, "decode", scenario]
        decode = subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, stderr=decode_log)
        command = [python, script, "prefill", scenario]
        prefill = subprocess.Popen(command, env=variables, stdin=decode.stdout, stdout=decode.stdin, stderr=prefill_log)
        decode.stdout.close()
        decode.stdin.close()
        try:
            codes = {"decode": decode.wait(600), "prefill": prefill.wait(600)}
        finally:
            decode.kill()
            prefill.kill()
            decode.wait()
            prefill.wait()
            logs = [file.seek(0) or file.read()[-4000:] for file in (decode_log, prefill_log)]
    killed = scenario.removeprefix("killed-")
    expected = {"decode": -9 * (killed == "receiver"), "prefill": -9 * (killed == "sender")}
    assert codes == expected, "\n".join(logs)
