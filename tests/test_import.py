"""What `import lynxq` costs and what it shows, in a process of its own."""

import json
import subprocess
import sys

import pytest

import lynxq

HEAVY = (
    *("torch", "ml_dtypes", "numba", "hypothesis", "typer", "rich", "safetensors", "cupy", "matplotlib"),
    *("fsspec", "zarr", "numcodecs", "dask"),
)


def in_a_process(code):
    """The JSON that `code` prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_import_is_light():
    code = "import json, sys, lynxq; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    loaded = in_a_process(code)
    assert "numpy" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_coding_needs_no_torch():
    code = """
import json, sys
import numpy as np
import lynxq
x = np.ones((3, 2), np.float32)
encoded = lynxq.encode(x, token_axis=0)
full, near = lynxq.decode_full(encoded), lynxq.decode_anchor(encoded, dtype="float16")
bound = lynxq.error_bound(encoded)
names = [name for name in ("torch", "ml_dtypes", "hypothesis", "rich", "typer", "safetensors") if name in sys.modules]
print(json.dumps([full.tolist(), near.tolist(), bound.tolist(), names]))
"""
    ones, zeros = [[1.0, 1.0]] * 3, [[0.0, 0.0]] * 3
    assert in_a_process(code) == [ones, ones, zeros, []]


def test_bfloat16_is_imported_when_it_is_wanted():
    code = """
import json, sys
import numpy as np
import lynxq
encoded = lynxq.encode(np.ones((3, 2), np.float32), token_axis=0)
before = "ml_dtypes" in sys.modules
decoded = lynxq.decode_full(encoded, dtype="bfloat16")
print(json.dumps([before, decoded.dtype.name, decoded.astype(np.float32).tolist()]))
"""
    assert in_a_process(code) == [False, "bfloat16", [[1.0, 1.0]] * 3]


def test_the_public_surface():
    code = """
import json, types, lynxq
shown = [n for n in dir(lynxq) if not n.startswith("_") and not isinstance(getattr(lynxq, n), types.ModuleType)]
print(json.dumps([shown, lynxq.__all__, lynxq.__version__]))
"""
    shown, names, version = in_a_process(code)
    assert sorted(shown) == sorted(names)
    assert len(set(names)) == len(names)
    assert version == lynxq.__version__
    assert {"Encoded", "LynxqError", "Params", "decode_anchor", "decode_full", "encode", "error_bound"} <= set(names)


@pytest.mark.parametrize("name", lynxq.__all__)
def test_public_names_are_documented(name):
    assert getattr(lynxq, name).__doc__.strip()


def test_public_submodules_are_imported_when_they_are_used():
    code = "import lynxq, sys; before = set(sys.modules)\n"
    for name in ("backends", "baselines", "errors", "evaluate", "metrics", "naming", "paged", "plots", "testing"):
        code += f"assert lynxq.{name} is sys.modules['lynxq.{name}']\n"
    code += "try: lynxq.nonsense\nexcept AttributeError as error: print(error)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "module 'lynxq' has no attribute 'nonsense'\n"


def test_the_command_line_starts_without_what_its_commands_need():
    code = "import json, sys, lynxq.cli; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    loaded = in_a_process(code)
    assert "typer" in loaded
    assert {"torch", "numba", "matplotlib", "fsspec", "transformers", "zarr", "hypothesis"} & set(loaded) == set()
