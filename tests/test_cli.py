"""The command line, in-process for its commands and as a program for what only a program shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

import lynxq
from lynxq import Params, baselines, errors
from lynxq.cli import app
from lynxq.errors import TensorFileError
from lynxq.tensorfile import open_tensors, save_tensors

RUNNER = CliRunner()


@pytest.fixture
def tensors():
    rng = np.random.default_rng(7)
    return {
        "layer.0.key": rng.standard_normal((300, 2, 64), dtype=np.float32).astype(ml_dtypes.bfloat16),
        "layer.0.value": rng.standard_normal((300, 2, 64), dtype=np.float32).astype(np.float16),
        "other [bold]:x:": rng.standard_normal((300, 2, 5), dtype=np.float32),
    }


@pytest.fixture
def source(tensors, tmp_path):
    path = tmp_path / "kv.safetensors"
    save_tensors(path, tensors, {"model": "toy"})
    return path


def run(*arguments, code=0):
    result = RUNNER.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def read(path):
    with open_tensors(path) as file:
        return dict(file.items()), file.metadata


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_encode_chooses_presets_by_name_says_so_and_decode_gives_what_the_library_gives(tensors, source, tmp_path):
    shown = run("encode", source, "-o", tmp_path / "kv.lynx", "--meta", "revision=3")
    rows = {line.split("  ")[0].strip(): line.split() for line in shown.splitlines()[1:4]}
    assert "keys" in rows["layer.0.key"]
    assert "values" in rows["layer.0.value"]
    assert "keys" in rows["other [bold]:x:"]
    with lynxq.open(tmp_path / "kv.lynx") as reader:
        assert reader.metadata == {"model": "toy", "revision": "3"}
        assert {name: tensor.params for name, tensor in reader.items()} == {
            "layer.0.key": Params.keys(),
            "layer.0.value": Params.values(),
            "other [bold]:x:": Params.keys(),
        }
    for tier, decode in (("full", lynxq.decode_full), ("anchor", lynxq.decode_anchor)):
        run("decode", tmp_path / "kv.lynx", "-o", tmp_path / f"{tier}.safetensors", "--tier", tier)
        decoded, metadata = read(tmp_path / f"{tier}.safetensors")
        assert metadata == {"model": "toy", "revision": "3"}
        for name, x in tensors.items():
            params = Params.values() if name.endswith("value") else Params.keys()
            assert same(decoded[name], decode(lynxq.encode(x, params, token_axis=0)))


def test_options_become_parameters(source, tmp_path):
    run(
        *("encode", source, "-o", tmp_path / "a.lynx", "--preset", "keys", "--alpha", 2, "--anchor-bits", 5),
        *("--chunk", 64, "--center", "mean", "--scale-width", "u16", "--sink-tokens", 1, "--first-token", 9),
    )
    with lynxq.open(tmp_path / "a.lynx") as reader:
        expected = Params.keys(
            alpha=2.0, anchor_bits=5, residual_bits=3, chunk=64, center="mean", metadata="u16", sink_tokens=1
        )
        assert {tensor.params for tensor in reader.values()} == {expected}
        assert {tensor.first_token for tensor in reader.values()} == {9}


@pytest.mark.parametrize(
    ("options", "split"), [(("--residual-bits", 3), (4, 3)), (("--anchor-bits", 5, "--residual-bits", 2), (5, 2))]
)
def test_codes_may_be_shorter_than_a_byte(source, tmp_path, options, split):
    run("encode", source, "-o", tmp_path / "a.lynx", *options)
    with lynxq.open(tmp_path / "a.lynx") as reader:
        assert {(one.params.anchor_bits, one.params.residual_bits) for one in reader.values()} == {split}


def test_codes_longer_than_a_byte_are_refused(source, tmp_path):
    with pytest.raises(errors.ParamsError, match=r"anchor_bits \+ residual_bits must be at most 8, got 4\+5"):
        run("encode", source, "-o", tmp_path / "a.lynx", "--residual-bits", 5)
    assert not (tmp_path / "a.lynx").exists()


def test_token_axis_and_head_dim(tmp_path):
    x = np.random.default_rng(1).standard_normal((2, 50, 6 * 16), dtype=np.float32)
    save_tensors(tmp_path / "x.safetensors", {"v": x})
    run("encode", tmp_path / "x.safetensors", "-o", tmp_path / "x.lynx", "--token-axis", 1, "--head-dim", 16)
    with lynxq.open(tmp_path / "x.lynx") as reader:
        encoded = lynxq.encode(x, Params.values(), token_axis=1, head_dim=16)
        assert reader["v"].encoded().anchor.tobytes() == encoded.anchor.tobytes()


def test_split_files(source, tensors, tmp_path):
    run("encode", source, "-o", tmp_path / "kv.lynx", "--split")
    hot, cold = tmp_path / "kv.lynx", tmp_path / "kv.residual.lynx"
    run("verify", hot, "--residual", cold)
    run("decode", hot, "--residual", cold, "-o", tmp_path / "full.safetensors")
    run("decode", hot, "-o", tmp_path / "anchor.safetensors", "--tier", "anchor")
    with pytest.raises(errors.MissingResidualError):
        run("decode", hot, "-o", tmp_path / "none.safetensors")
    with pytest.raises(errors.MissingAnchorError):
        run("info", cold)
    assert not (tmp_path / "none.safetensors").exists()
    x = tensors["layer.0.key"]
    assert same(read(tmp_path / "full.safetensors")[0]["layer.0.key"], lynxq.decode_full(lynxq.encode(x, token_axis=0)))


def test_info_shows_everything_and_json_is_describe(source, tmp_path):
    path = tmp_path / "kv.lynx"
    run("encode", source, "-o", path, "--alpha", 1)
    shown = run("info", path)
    assert "format 1.0" in shown
    assert "model: toy" in shown
    assert "values alpha=1.0" in shown
    assert "other [bold]:x:" in shown
    assert json.loads(run("info", path, "--json")) == lynxq.describe(path)


def test_verify_finds_damage_and_says_where(source, tmp_path):
    path = tmp_path / "kv.lynx"
    run("encode", source, "-o", path)
    assert "all checksums match" in run("verify", path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = RUNNER.invoke(app, ["verify", str(path)])
    assert result.exit_code == 1
    assert "ResidualChecksumError: residual page 1 of tensor" in result.stderr


def test_eval_prints_the_rows_of_evaluate(source):
    rows = json.loads(run("eval", source, "--methods", "keys,int8", "--json"))
    assert {(row["method"], row["tier"], row["kind"]) for row in rows} == {
        (method, tier, kind)
        for method, tiers in (("keys", ("anchor", "full")), ("int8", ("-",)))
        for tier in tiers
        for kind in ("key", "value", "other")
    }
    table = run("eval", source, "--methods", "all")
    assert f"{rows[0]['vnmse']:.2e}" in table
    with pytest.raises(errors.ParamsError, match="'nonsense'"):
        run("eval", source, "--methods", "nonsense")
    with pytest.raises(errors.LynxqError, match="keys is named more than once in --methods"):
        run("eval", source, "--methods", "keys,int8, keys")


def test_eval_of_all_leaves_out_what_needs_a_missing_library(source, monkeypatch):
    monkeypatch.setattr(baselines.base, "find_spec", {}.get)
    result = RUNNER.invoke(app, ["eval", str(source), "--methods", "all", "--json"])
    assert result.exit_code == 0
    assert "left out, for want of the extra `baselines`: cachegen, cachegen-lmcache" in result.stderr
    methods = {row["method"] for row in json.loads(result.stdout)}
    assert {"kivi4", "nf4"} < methods
    assert not {"cachegen", "cachegen-lmcache"} & methods


def test_nothing_is_replaced_without_force(source, tmp_path):
    path = tmp_path / "kv.lynx"
    path.write_bytes(b"precious")
    with pytest.raises(errors.LynxqError, match="--force"):
        run("encode", source, "-o", path)
    assert path.read_bytes() == b"precious"
    run("encode", source, "-o", path, "--force")
    out = tmp_path / "x.safetensors"
    out.write_bytes(b"precious")
    with pytest.raises(errors.LynxqError, match="--force"):
        run("decode", path, "-o", out)
    assert out.read_bytes() == b"precious"


def test_a_failed_encode_names_the_tensor_and_leaves_no_file(tmp_path):
    good = np.zeros((9, 4), np.float32)
    for name, bad, error in (
        ("integers", np.zeros((9, 4), np.int32), errors.DTypeError),
        ("infinite", np.full((9, 4), np.inf, np.float32), errors.NonFiniteError),
        ("scalar", np.zeros((), np.float32), errors.ShapeError),
    ):
        save_tensors(tmp_path / "x.safetensors", {"a.key": good, f"b.{name}": bad})
        with pytest.raises(error) as caught:
            run("encode", tmp_path / "x.safetensors", "-o", tmp_path / "x.lynx")
        assert f"tensor 'b.{name}'" in caught.value.__notes__
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x.safetensors"]


def test_safetensors_of_any_strides_keep_their_values(tmp_path):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    views = {"t": x.T, "r": x[::-1], "s": x[:, ::2, 1:], "b": np.broadcast_to(x[0], (5, 3, 4)), "0": x[0, 0, 0:0]}
    save_tensors(tmp_path / "x.safetensors", views)
    found, _ = read(tmp_path / "x.safetensors")
    for name, view in views.items():
        assert same(found[name], np.array(view))


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"no tensors here, only text")
    with pytest.raises(TensorFileError):
        run("eval", path)
    with pytest.raises(errors.NotLynxError):
        run("info", path)


def test_nothing_in_a_file_reaches_the_terminal_as_a_command(tmp_path):
    path = tmp_path / "kv.lynx"
    encoded = lynxq.encode(np.zeros((9, 4), np.float32), token_axis=0)
    names = ["\x1b[2J\x1b[31mred", "a\nlayer.9.key FAKE ROW", "right\u202eleft", "nul\0"]
    lynxq.save(path, dict.fromkeys(names, encoded), metadata={"x\n  approved: yes\x1b]0;t\x07": "v" * 60000})
    for arguments in (("info", path), ("info", path, "--json"), ("verify", path)):
        shown = run(*arguments)
        assert all(character.isprintable() or character == "\n" for character in shown)
    assert "FAKE ROW" in run("info", path)
    assert not any(line.strip().startswith(("layer.9.key", "approved")) for line in run("info", path).splitlines())
    assert len(run("info", path)) < 5000


def test_a_source_is_never_its_own_output(source):
    before = source.read_bytes()
    for spelling in (source, source.parent / "." / source.name):
        with pytest.raises(errors.LynxqError, match="is the file that is read"):
            run("encode", source, "-o", spelling, "--force")
    assert source.read_bytes() == before


def test_a_name_that_safetensors_reserves(tmp_path):
    encoded = lynxq.encode(np.zeros((9, 4), np.float32), token_axis=0)
    lynxq.save(tmp_path / "kv.lynx", {"__metadata__": encoded})
    with pytest.raises(errors.TensorFileError, match="__metadata__"):
        run("decode", tmp_path / "kv.lynx", "-o", tmp_path / "x.safetensors")


@pytest.mark.parametrize("shape", [[0, 1 << 62, 1 << 30], [1 << 62, 0], [1] * 70])
def test_hostile_shapes_in_a_tensor_file(tmp_path, shape):
    size = 4 if 0 not in shape else 0
    header = json.dumps({"k": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with pytest.raises(errors.LynxqError):
        run("encode", path, "-o", tmp_path / "x.lynx")


def test_warmup_says_which_backends_there_are():
    shown = run("warmup", "--dtype", "bfloat16")
    assert "reference: ready" in shown.splitlines()
    assert [line.split(":")[0] for line in shown.splitlines()] == list(lynxq.backends.available())
    with pytest.raises(errors.DTypeError):
        run("warmup", "--dtype", "int8")


# --- as a program ----------------------------------------------------------------------------------


def program(*arguments, cwd):
    command = [sys.executable, "-m", "lynxq", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_demo_runs_anywhere_and_prints_plain_text(tmp_path):
    result = program("demo", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    for word in ("pair", "keys", "paper", "int8", "int4", "anchor", "full", "vNMSE", "decode from the anchors alone"):
        assert word in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_errors_are_one_line_and_exit_code_1(tmp_path):
    (tmp_path / "x.lynx").write_bytes(b"root:x:0:0 [red]")
    result = program("info", "x.lynx", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("lynxq: a segment must begin with")
    assert result.stderr.count("\n") == 1
    assert "b'root:x:0'" in result.stderr
    assert program("info", "absent", cwd=tmp_path).returncode == 2


def test_version_and_help(tmp_path):
    assert program("--version", cwd=tmp_path).stdout == f"lynxq {lynxq.__version__}\n"
    assert "Example: lynxq encode" in program("encode", "--help", cwd=tmp_path).stdout


def test_a_closed_pipe_is_not_a_traceback(source):
    command = f"{sys.executable} -m lynxq eval {source} --methods keys | true"
    result = subprocess.run(["bash", "-c", command], cwd=Path.cwd(), capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr


def test_any_encoding_and_no_output_at_all(source, tmp_path):
    lynxq_ = f"{sys.executable} -m lynxq"
    assert program("encode", source, "-o", tmp_path / "kv.lynx", cwd=tmp_path).returncode == 0
    for command in (f"PYTHONIOENCODING=ascii {lynxq_} info kv.lynx", f"{lynxq_} info kv.lynx >&-"):
        result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")
