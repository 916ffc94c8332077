"""Virtual environments of their own for tests against packages that cannot share ours; kept between runs."""

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent


def folder() -> Path:
    """Where the environments are kept: ``LYNXQ_TEST_ENVIRONMENTS``, or a folder of the user's cache."""
    chosen = os.environ.get("LYNXQ_TEST_ENVIRONMENTS")
    return Path(chosen) if chosen else Path.home() / ".cache" / "lynxq-test-environments"


def environment(
    name: str, requirements: Iterable[str], *, without_dependencies: Iterable[str] = (), uninstall: Iterable[str] = ()
) -> Path:
    """The Python of an environment that holds these packages and lynxq as it is in this checkout.

    It is made at the first call, and again when what is asked of it changes.
    """
    steps = [
        ["install", "--quiet", *requirements],
        *([["install", "--quiet", "--no-deps", *without_dependencies]] if without_dependencies else []),
        *([["uninstall", "--quiet", "--yes", *uninstall]] if uninstall else []),
    ]
    digest = hashlib.sha256(repr((sys.version_info[:3], steps)).encode()).hexdigest()[:16]
    target = folder() / f"{name}-{digest}"
    python, complete = target / "bin" / "python", target / "complete"
    if not complete.exists():
        venv.create(target, clear=True, with_pip=True)
        for step in steps:
            subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *step], check=True)
        complete.touch()
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", str(ROOT)]
    subprocess.run(install, check=True)
    return python
