"""The distributions as they would be published: reproducible, complete, and with a description that renders.

Needs build, hatchling and twine, which the extra ``dev`` has. Builds without a network and leaves nothing behind.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: 2024-01-01. Any date will do: what is checked is that no other one gets in.
ENVIRONMENT = {**os.environ, "SOURCE_DATE_EPOCH": "1704067200"}

#: What must be there, by the ends of names.
SOURCES = (
    *("LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "mkdocs.yml", "pyproject.toml"),
    *("lynxq/py.typed", "tests/golden/checksums.json", "docs/format.md", "bench/run_all.py", ".ci/run"),
)
WHEEL = (
    *("lynxq/py.typed", "lynxq/data/smollm2_excerpt.safetensors", "lynxq/backends/cuda/kernels/encode.cu"),
    *("dist-info/licenses/LICENSE", "dist-info/entry_points.txt"),
)


def build(source: Path, target: Path, *what: str) -> dict[str, bytes]:
    """The distributions of a source tree by their names."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), *what, str(source)]
    subprocess.run(command, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    return {path.name: path.read_bytes() for path in sorted(target.iterdir())}


def check_names(names: list[str], wanted: tuple[str, ...], what: str) -> None:
    """Fail if something is missing, or if something is there that belongs to a machine."""
    missing = [end for end in wanted if not any(name.endswith(end) for name in names)]
    if missing:
        sys.exit(f"{what} lacks {', '.join(missing)}")
    strange = [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".so", ".o", ".cubin"))]
    if strange:
        sys.exit(f"{what} has {', '.join(strange)}")


def main() -> None:
    """Build from the checkout and again from what was built, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        first = build(ROOT, work / "first")
        wheel, sdist = sorted(first, key=lambda name: name.endswith(".tar.gz"))
        with tarfile.open(work / "first" / sdist) as archive:
            check_names(archive.getnames(), SOURCES, sdist)
            archive.extractall(work, filter="data")
        check_names(zipfile.ZipFile(work / "first" / wheel).namelist(), WHEEL, wheel)
        if build(work / sdist.removesuffix(".tar.gz"), work / "second") != first:
            sys.exit("what is built from the sdist differs from what is built from the checkout")
        if build(ROOT, work / "third", "--wheel")[wheel] != first[wheel]:
            sys.exit("the wheel that is built from the checkout differs from the one that is built from the sdist")
        files = [str(work / "first" / name) for name in first]
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)


if __name__ == "__main__":
    main()
