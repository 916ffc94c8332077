"""Pictures: every row has its mark, labels keep clear of each other, and nothing global is touched."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from itertools import combinations

import numpy as np
import pytest
from matplotlib import style
from matplotlib.image import imread
from typer.testing import CliRunner

from lynxq import errors, plots, synthetic
from lynxq.cli import app
from lynxq.evaluate import Row, evaluate
from lynxq.plots import Mark
from lynxq.tensorfile import save_tensors

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def cache():
    return synthetic.cache(64, 2, 32, layers=2, pathologies=[])  # bfloat16, so that bf16 is lossless


@pytest.fixture(scope="module")
def rows(cache):
    return evaluate(cache, ["pair", "keys", "bf16", "int8", "int4", "int4-token", "kivi4", "nf4"], token_axis=0)


def digest(data):
    """To compare pictures by: pytest takes minutes to explain how two of them differ."""
    return sha256(data).hexdigest()


def pixels(figure):
    image = BytesIO()
    figure.savefig(image, format="png", metadata={"Software": None})
    return digest(image.getvalue())


def marks(axes):
    """(marker, x, y) of every mark; leader lines have no marker."""
    return [
        (line.get_marker(), line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.lines
        if line.get_marker() != "None"
    ]


def labels(axes):
    return [text for text in axes.texts if not text.get_text().startswith(("lossless", "not drawn"))]


def test_every_row_has_a_mark_at_its_bits_and_error_and_a_name(rows):
    figure = plots.error_against_bits(rows)
    assert [axes.get_title("left") for axes in figure.axes] == ["keys, 2 tensors", "values, 2 tensors"]
    shapes = {"anchor": "^", "full": "o", "-": "s"}
    for axes, kind in zip(figure.axes, ("key", "value"), strict=True):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        of_kind = [row for row in rows if row.kind == kind]
        lossy = {(shapes[row.tier], row.bits_per_element, row.vnmse) for row in of_kind if row.vnmse}
        drawn = marks(axes)
        assert lossy < set(drawn)
        assert len(drawn) == len(of_kind)
        named = [name for text in labels(axes) for name in text.get_text().split(", ")]
        assert sorted(named) == sorted(row.method for row in of_kind)


@pytest.mark.parametrize("error", ["vnmse", "centred_vnmse", "max_error"])
def test_the_error_that_is_asked_for(rows, error):
    axes = plots.error_against_bits(rows, error=error).axes[0]
    lossy = {getattr(row, error) for row in rows if row.kind == "key" and row.vnmse}
    assert lossy < {y for _, _, y in marks(axes)}


def test_what_is_lossless_lies_below_everything_else(rows):
    axes = plots.error_against_bits(rows).axes[0]
    line = next(text for text in axes.texts if text.get_text() == "lossless")
    heights = {x: y for _, x, y in marks(axes)}
    assert heights.pop(16.0) < line.get_position()[1] < min(heights.values())


def overlaps(figure):
    """Labels that lie on each other, out of the picture, or on a mark."""
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in labels(axes)]
        for (name, a), (other, b) in combinations(boxes, 2):
            if a.overlaps(b):
                yield name, other
        for name, box in boxes:
            if not figure.bbox.fully_containsx(box.x0) or not figure.bbox.fully_containsx(box.x1):
                yield name, "border"
            for _, x, y in marks(axes):
                if box.contains(*axes.transData.transform((x, y))):
                    yield name, (x, y)


@pytest.mark.parametrize("count", [3, 12, 25])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_labels_keep_clear_of_each_other_and_of_marks(count, seed):
    rng = np.random.default_rng(seed)
    bits = np.exp(rng.normal(1.6, 0.3, count))
    tiers = ["anchor" if i % 5 == 0 else "-" for i in range(count)]
    found = [Mark(f"scheme-{i}", b, math.exp(-b + rng.normal()), tiers[i]) for i, b in enumerate(bits)]
    figure = plots.draw({"keys": found, "values": found[::-1]}, xlabel="bits", ylabel="vNMSE", title="long " * 60)
    assert list(overlaps(figure)) == []


def test_marks_at_one_place_share_a_label():
    same = [Mark("a", 4.0, 1e-3), Mark("b", 4.0, 1e-3), Mark("c", 4.0, 1e-3, "full"), Mark("d", 4.0, 2e-3)]
    (axes,) = plots.draw({"keys": same}, xlabel="", ylabel="").axes
    assert sorted(text.get_text() for text in labels(axes)) == ["a, b", "c", "d"]


def test_long_names_are_wrapped_and_nothing_is_printed(capsys):
    found = [Mark("long name " * 30, 4.0, 1e-3), *(Mark(f"same-{i}", 8.0, 1e-5) for i in range(30))]
    figure = plots.draw({"keys": found, "values": found[:1]}, xlabel="", ylabel="")
    assert list(overlaps(figure)) == []
    assert capsys.readouterr() == ("", "")


def test_what_cannot_be_drawn_is_named():
    found = [
        Mark("fine", 4.0, 1e-3),
        Mark("infinite", 4.0, math.inf),
        Mark("nan", 4.0, math.nan),
        Mark("empty", 0.0, 0.0),
    ]
    (axes,) = plots.draw({"keys": found}, xlabel="", ylabel="").axes
    assert len(marks(axes)) == 1
    assert next(t.get_text() for t in axes.texts if "not drawn" in t.get_text()).endswith(": infinite, nan, empty")
    for lonely in (Mark("exact", 16.0, 0.0), Mark("infinite", 16.0, math.inf), Mark("fine", 4.0, 1e-3)):
        assert pixels(plots.draw({"keys": [lonely], "values": []}, xlabel="", ylabel=""))


def test_nothing_to_draw():
    for call in (lambda: plots.error_against_bits([]), lambda: plots.draw({"keys": []}, xlabel="", ylabel="")):
        with pytest.raises(errors.ParamsError, match="at least one row"):
            call()
    with pytest.raises(errors.ParamsError, match="'mse'"):
        plots.error_against_bits([], error="mse")


def test_text_is_text_whatever_is_in_it(rows):
    odd = "$x_{$ \\frac 100% {"
    found = [replace(row, method=odd) for row in rows if row.method == "int4"]
    figure = plots.error_against_bits(found, title=odd)
    assert pixels(figure)
    assert labels(figure.axes[0])[0].get_text() == odd


def test_tensors_of_neither_kind_have_a_panel():
    row = Row("int4", "-", "other", 1, 100, 50, 1e-2, 2e-2, 0.5)
    assert [axes.get_title("left") for axes in plots.error_against_bits([row]).axes] == ["other tensors, 1 tensor"]


def test_a_dark_style_of_the_caller_changes_nothing(rows):
    plain = pixels(plots.error_against_bits(rows, title="t"))
    with style.context("dark_background"):
        figure = plots.error_against_bits(rows, title="t")
        assert pixels(figure) == plain
    assert plain == pixels(plots.error_against_bits(rows, title="t"))


def test_files_are_reproducible_whole_and_of_the_format_that_the_suffix_says(rows, tmp_path):
    figure = plots.error_against_bits(rows)
    for name, magic in (("a.png", b"\x89PNG"), ("a.PDF", b"%PDF"), ("a.svg", b"<?xml")):
        plots.save(tmp_path / name, figure)
        assert (tmp_path / name).read_bytes().startswith(magic)
    for name in ("a.png", "a.PDF"):
        before = digest((tmp_path / name).read_bytes())
        plots.save(tmp_path / name, plots.error_against_bits(rows))
        assert digest((tmp_path / name).read_bytes()) == before
    for name in ("a", "a.gif2", ".png"):
        with pytest.raises(errors.ParamsError, match=r"must end in one of .*png.*, got"):
            plots.save(tmp_path / name, figure)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.PDF", "a.png", "a.svg"]


def test_a_program_that_a_format_needs_is_one_sentence(rows, tmp_path, monkeypatch):
    figure = plots.error_against_bits(rows)

    def fails(*_, **__):
        raise RuntimeError("'xelatex' not found")

    monkeypatch.setattr(figure, "savefig", fails)
    with pytest.raises(errors.MissingLibraryError, match="'pgf' needs what is not there: 'xelatex' not found"):
        plots.save(tmp_path / "a.pgf", figure)
    assert not list(tmp_path.iterdir())


def test_neither_pyplot_nor_settings_are_touched(tmp_path):
    code = """
import sys
from lynxq import plots
assert "matplotlib" not in sys.modules
import matplotlib
settings = lambda: {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}
before = settings()
plots.save(sys.argv[1], plots.draw({"": [plots.Mark("a", 1.0, 1.0)]}, xlabel="", ylabel=""))
assert settings() == before
print("matplotlib.pyplot" in sys.modules)
"""
    command = [sys.executable, "-W", "error", "-c", code, tmp_path / "a.png"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "False\n"), result.stderr


@pytest.mark.parametrize("library", ["matplotlib", "textalloc"])
def test_a_missing_library_is_named_with_the_extra(library, rows, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    for call in (lambda: plots.error_against_bits(rows), lambda: plots.image_format("a.png")):
        with pytest.raises(errors.MissingLibraryError, match=rf"{library} is not installed: .*'lynxq\[plot\]'$"):
            call()


# --- the command line ------------------------------------------------------------------------------


@pytest.fixture
def source(cache, tmp_path):
    save_tensors(tmp_path / "kv $.safetensors", cache)
    return tmp_path / "kv $.safetensors"


def run(*arguments, code=0):
    result = RUNNER.invoke(app, ["eval", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_eval_draws_the_picture_of_its_rows_beside_the_same_table(cache, source, tmp_path):
    out = tmp_path / "out.png"
    table = run(source, "--methods", "pair,int4")
    assert run(source, "--methods", "pair,int4", "--plot", out) == table
    names = "layer.0.key, layer.0.value, layer.1.key, layer.1.value"
    expected = plots.error_against_bits(
        evaluate(cache, ["pair", "int4"], token_axis=0), title=f"kv $.safetensors: {names}"
    )
    plots.save(tmp_path / "expected.png", expected)
    assert digest(out.read_bytes()) == digest((tmp_path / "expected.png").read_bytes())
    image = imread(out)
    assert image[0, 0, :3].tolist() == [1, 1, 1]


def test_eval_replaces_no_picture_without_force_and_never_its_source(source, tmp_path):
    out = tmp_path / "out.svg"
    out.write_bytes(b"precious")
    with pytest.raises(errors.LynxqError, match="--force"):
        run(source, "--methods", "int4", "--plot", out)
    assert out.read_bytes() == b"precious"
    run(source, "--methods", "int4", "--plot", out, "--force")
    assert out.read_bytes().startswith(b"<?xml")


def test_eval_says_what_stands_in_the_way_of_a_picture_before_it_works(source, tmp_path, monkeypatch):
    monkeypatch.setattr("lynxq.evaluate.evaluate", None)  # not reached
    before = source.read_bytes()
    with pytest.raises(errors.ParamsError, match=r"must end in one of .*safetensors'"):
        run(source, "--plot", source, "--force")
    with pytest.raises(errors.LynxqError, match="is not a folder"):
        run(source, "--plot", tmp_path / "none" / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(errors.MissingLibraryError, match=r"pip install 'lynxq\[plot\]'"):
        run(source, "--plot", tmp_path / "a.png")
    assert source.read_bytes() == before
