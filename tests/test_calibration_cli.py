"""``lynxq calibrate``, and files of parameters in ``lynxq encode`` and ``lynxq eval``."""

from __future__ import annotations

import json
from importlib.resources import as_file, files

import numpy as np
import pytest
from typer.testing import CliRunner

import lynxq
from lynxq import Params, errors
from lynxq.calibration import Calibration
from lynxq.cli import app
from lynxq.tensorfile import open_tensors, save_tensors

RUNNER = CliRunner()


def run(*arguments, code=0):
    result = RUNNER.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibration") / "kv.safetensors"
    with as_file(files("lynxq") / "data" / "smollm2_excerpt.safetensors") as sample, open_tensors(sample) as file:
        save_tensors(path, dict(file.items()), file.metadata)
    return path


def test_calibrate_encode_and_eval(source, tmp_path):
    shown = run("calibrate", source, "-o", tmp_path / "params.json", "--budget", 4.65, "--per", "layer")
    with open_tensors(source) as file:
        tensors = dict(file.items())
    expected = lynxq.calibrate(tensors, None, 4.65, token_axis=0, per="layer")
    text = (tmp_path / "params.json").read_text(encoding="utf-8")
    assert Calibration.from_json(text) == expected
    assert f"centred vNMSE: {expected.error:.3g} at {expected.bits_per_element:.3f} bits" in shown
    run("encode", source, "-o", tmp_path / "kv.lynx", "--params", tmp_path / "params.json")
    with lynxq.open(tmp_path / "kv.lynx") as reader:
        assert {name: tensor.params for name, tensor in reader.items()} == {name: expected[name] for name in tensors}
    rows = json.loads(run("eval", source, "--methods", "pair", "--params", tmp_path / "params.json", "--json"))
    anchors = [row for row in rows if row["method"] == "params" and row["tier"] == "anchor"]
    assert sum(row["nbytes"] for row in anchors) * 8 / sum(row["elements"] for row in anchors) == pytest.approx(
        expected.bits_per_element
    )
    assert "params: calibrated for" in run("eval", source, "--methods", "keys", "--params", tmp_path / "params.json")


def test_calibrate_with_queries(source, tmp_path):
    rng = np.random.default_rng(0)
    with open_tensors(source) as file:
        keys = {name: file[name].shape for name in file.names if name.endswith("key")}
    queries = {name.replace("key", "query"): rng.standard_normal(shape, np.float32) for name, shape in keys.items()}
    save_tensors(tmp_path / "q.safetensors", queries)
    options = ("--queries", tmp_path / "q.safetensors", "--page", 128, "--page", 256, "--sink-tokens", 1)
    assert "attention-output error" in run("calibrate", source, "-o", tmp_path / "params.json", *options)
    found = Calibration.from_json((tmp_path / "params.json").read_text(encoding="utf-8"))
    assert found.objective == "attention"
    assert {entry.params.sink_tokens for entry in found.entries} == {1}


def test_plain_params_are_a_file_of_parameters_too(source, tmp_path):
    params = Params.keys(alpha=2.0, chunk=64)
    (tmp_path / "params.json").write_text(params.to_json(), encoding="utf-8")
    run("encode", source, "-o", tmp_path / "kv.lynx", "--params", tmp_path / "params.json")
    with lynxq.open(tmp_path / "kv.lynx") as reader:
        assert {tensor.params for tensor in reader.values()} == {params}
    shown = run("eval", source, "--methods", "pair", "--params", tmp_path / "params.json")
    assert "params: parameters of params.json" in shown


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]", b'{"entries": []}', b'{"alpha": "x"}'])
def test_files_without_parameters_are_refused(source, tmp_path, content):
    (tmp_path / "params.json").write_bytes(content)
    for command in (("encode", source, "-o", tmp_path / "kv.lynx"), ("eval", source)):
        with pytest.raises(errors.LynxqError, match=r"params\.json holds no parameters"):
            run(*command, "--params", tmp_path / "params.json")
    assert not (tmp_path / "kv.lynx").exists()


def test_a_calibration_lacks_no_parameter(source, tmp_path):
    path = tmp_path / "params.json"
    run("calibrate", source, "-o", path)
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["entries"][0]["params"]["alpha"]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(errors.LynxqError, match="must have all fields, got none for 'alpha'"):
        run("encode", source, "-o", tmp_path / "kv.lynx", "--params", path)


@pytest.mark.parametrize("options", [("--alpha", 2), ("--preset", "keys"), ("--anchor-bits", 5)])
def test_a_file_of_parameters_has_all_of_them(source, tmp_path, options):
    (tmp_path / "params.json").write_text(Params().to_json(), encoding="utf-8")
    with pytest.raises(errors.LynxqError, match="--params has all parameters"):
        run("encode", source, "-o", tmp_path / "kv.lynx", "--params", tmp_path / "params.json", *options)


def test_no_input_is_replaced(source, tmp_path):
    """The parameters are an input, too; and what is not a file is refused before the work."""
    params = tmp_path / "params.json"
    params.write_text(Params().to_json(), encoding="utf-8")
    split = tmp_path / "kv.residual.lynx"
    split.symlink_to(params)
    for options in (("-o", params), ("-o", tmp_path / "kv.lynx", "--split")):
        with pytest.raises(errors.LynxqError, match="is the file that is read"):
            run("encode", source, *options, "--params", params, "--force")
    for command in ("encode", "calibrate"):
        with pytest.raises(errors.LynxqError, match="only files can be replaced"):
            run(command, source, "-o", tmp_path, "--force")
    assert params.read_text(encoding="utf-8") == Params().to_json()


def test_a_tensor_that_the_calibration_does_not_know(source, tmp_path):
    run("calibrate", source, "-o", tmp_path / "params.json")
    save_tensors(tmp_path / "x.safetensors", {"latent": np.zeros((9, 4), np.float32)})
    with pytest.raises(errors.ParamsError, match="no parameters for other tensors") as caught:
        run("encode", tmp_path / "x.safetensors", "-o", tmp_path / "x.lynx", "--params", tmp_path / "params.json")
    assert caught.value.__notes__ == ["tensor 'latent'"]


def test_nothing_is_replaced_without_force_nor_by_a_failure(source, tmp_path):
    path = tmp_path / "params.json"
    path.write_text("precious", encoding="utf-8")
    with pytest.raises(errors.LynxqError, match="--force"):
        run("calibrate", source, "-o", path)
    with pytest.raises(errors.ParamsError, match=r"budget_bits must leave room .*, \d\.\d+ bits for these"):
        run("calibrate", source, "-o", path, "--force", "--budget", 2)
    assert path.read_text(encoding="utf-8") == "precious"
    run("calibrate", source, "-o", path, "--force")
    assert path.read_text(encoding="utf-8") != "precious"


def test_what_has_no_parameters_is_neither_encoded_nor_measured(source, tmp_path):
    path = tmp_path / "params.json"
    run("calibrate", source, "-o", path, "--budget", 4.65)
    data = json.loads(path.read_text(encoding="utf-8"))
    data["entries"] = [entry for entry in data["entries"] if entry["kind"] == "key"]
    path.write_text(json.dumps(data), encoding="utf-8")
    for command in (("encode", source, "-o", tmp_path / "kv.lynx"), ("eval", source, "--methods", "pair")):
        with pytest.raises(errors.LynxqError, match="value"):
            run(*command, "--params", path)


def test_a_picture_that_fails_loses_no_figures(source, tmp_path, monkeypatch):
    def fail(*_):
        raise errors.ParamsError("no picture")

    monkeypatch.setattr("lynxq.plots.save", fail)
    result = RUNNER.invoke(app, ["eval", str(source), "--methods", "pair", "--plot", str(tmp_path / "x.png")])
    assert "no picture" in str(result.exception)
    assert "vNMSE" in result.stdout
