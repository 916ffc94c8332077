"""Sections of pages that scripts write: what stands between ``<!-- name -->`` and ``<!-- /name -->``."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent


def update(page: str, contents: Mapping[str, str], *, check: bool) -> None:
    """Write sections of a page, each of which must be there once; with `check` exit if they are not as given."""
    path = ROOT / page
    old = new = path.read_text(encoding="utf-8")
    for name, content in contents.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        new, count = pattern.subn(lambda match, content=content: f"{match[1]}\n{content}\n\n{match[2]}", new)
        if count != 1:
            sys.exit(f"{page} must have the section {name!r} once, it has it {count} times")
    if not check:
        path.write_text(new, encoding="utf-8")
    elif old != new:
        sys.exit(f"{page} is not what bench/{Path(sys.argv[0]).name} writes")
