"""Every notebook of the documentation runs, offline, with this interpreter; what is committed has no outputs."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from io import BytesIO
from pathlib import Path

import nbformat
import pytest
from matplotlib.image import imread
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
IDS = [path.stem for path in NOTEBOOKS]


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    """Name of a kernel that is this interpreter, whatever kernels the user has."""
    folder = tmp_path_factory.mktemp("jupyter")
    spec = folder / "kernels" / "lynxq-test"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "lynxq", "language": "python"}))
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        for name in ("DATA", "CONFIG", "RUNTIME"):
            patch.setenv(f"JUPYTER_{name}_DIR", str(folder / name.lower()))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # the checkout, not what may be installed
        for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            patch.setenv(proxy, "http://127.0.0.1:9")  # nobody answers there
        yield spec.name


def test_there_are_notebooks():
    assert IDS == ["01_five_minutes", "02_vnmse", "03_parameters", "04_where_the_error_goes"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
@pytest.mark.filterwarnings("default")  # of the Jupyter libraries; those of ours show in the output
def test_notebook_runs_and_shows_pictures(path, kernel, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name=kernel,
        resources={"metadata": {"path": str(tmp_path)}},
        store_widget_state=False,
    )
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    said = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stderr")
    assert "Warning" not in said
    pictures = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    for picture in pictures:
        image = imread(BytesIO(base64.b64decode(picture)))
        assert image.std() > 0.01  # something is drawn
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_notebook_is_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.language_info == {"name": "python"}  # not the version of who saved it
    for cell in notebook.cells:
        assert not cell.metadata
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert path.read_text(encoding="utf-8") == nbformat.writes(notebook, indent=1) + "\n"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_links_to_files_lead_somewhere(path):
    notebook = nbformat.read(path, as_version=4)
    text = "".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (path.parent / target).exists(), target
