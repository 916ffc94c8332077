"""Compiled kernels are kept on disk, by everything that makes them what they are."""

from __future__ import annotations

import pytest

from lynxq.backends.cuda import nvrtc
from lynxq.errors import BackendError
from tests.cuda import cases
from tests.cuda.test_plan import _launch
from tests.cuda.tools import needs_nvrtc

pytestmark = needs_nvrtc


@pytest.fixture
def launch():
    return _launch("nonfinite", cases.CASES["keys"].layout())


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Calls of the compiler; the cache is empty."""
    monkeypatch.setenv("LYNXQ_CACHE_DIR", str(tmp_path / "cache"))
    calls = []
    real = nvrtc.compile_unit
    monkeypatch.setattr(nvrtc, "compile_unit", lambda *args: calls.append(args) or real(*args))
    return calls


def test_a_kernel_is_compiled_once(launch, compiled):
    first = nvrtc.cubin_path(launch.unit, launch.defines, 90)
    assert first == nvrtc.cubin_path(launch.unit, launch.defines, 90)
    assert len(compiled) == 1
    assert first.read_bytes().startswith(b"\x7fELF")
    assert list(first.parent.iterdir()) == [first], "no half-written file stays"


def test_architecture_parameters_options_and_compiler_are_part_of_the_name(launch, compiled, monkeypatch):
    paths = {nvrtc.cubin_path(launch.unit, launch.defines, architecture) for architecture in (80, 90)}
    changed = tuple((name, 128 if name == "PAGE" else value) for name, value in launch.defines)
    paths.add(nvrtc.cubin_path(launch.unit, changed, 90))
    monkeypatch.setattr(nvrtc, "version", lambda: (99, 0))
    paths.add(nvrtc.cubin_path(launch.unit, launch.defines, 90))
    monkeypatch.setattr(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, "-lineinfo"))
    paths.add(nvrtc.cubin_path(launch.unit, launch.defines, 90))
    assert len(paths) == len(compiled) == 5


def test_options_are_those_of_exact_arithmetic():
    assert {"-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"} <= set(nvrtc.OPTIONS)


def test_errors_show_what_the_compiler_said():
    with pytest.raises(BackendError, match="expected"):
        nvrtc.compile_source("not C++", ("-arch=sm_90",), "broken.cu")


def test_a_folder_that_cannot_be_written_is_an_error(launch, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LYNXQ_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(BackendError, match="LYNXQ_CACHE_DIR"):
        nvrtc.cubin_path(launch.unit, launch.defines, 90)


def test_the_cache_is_in_the_users_folder_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("LYNXQ_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert nvrtc.cache_folder() == tmp_path / "lynxq"
