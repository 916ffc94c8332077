"""What the site needs beyond its plugins: cross references, links of notebooks, and notebooks run on this checkout."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):(?=<code>)")
_LINK = re.compile(r'(?<=href=")(?![a-z]+:|#|/)([^"#]+\.(?:md|ipynb))(?=["#])')


def on_startup(**_: Any) -> None:
    """Notebooks show this code, as the API pages do, and not a lynxq that happens to be installed."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def on_page_content(html: str, *, page: Page, files: Files, **_: Any) -> str:
    """Show references such as :func:`lynxq.encode` as plain code; lead links of notebooks to pages."""
    html = _ROLE.sub("", html)
    if page.file.src_uri.endswith(".ipynb"):  # the plugin leaves links as they are in the file
        html = _LINK.sub(lambda link: _url(link[1], page, files), html)
    return html


def _url(target: str, page: Page, files: Files) -> str:
    found = files.get_file_from_path(posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target)))
    if found is None:
        raise PluginError(f"{page.file.src_uri} has a link to {target}, which is no page")
    return get_relative_url(found.url, page.file.url)
