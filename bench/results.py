"""Write the tables of docs/results.md and docs/calibration.md, and the figures: python bench/results.py [--check]."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE))

from results_tables import SECTIONS, source  # noqa: E402 - found beside this file, also by the tests

RESULTS = _HERE / "results"
DOCS = _HERE.parent / "docs"
#: Pages and the sections that they must have.
PAGES: Mapping[str, tuple[str, ...]] = {
    "results.md": tuple(name for name in SECTIONS if name != "calibration"),
    "calibration.md": ("calibration",),
}


def load(kind: str, name: str) -> dict[str, Any] | None:
    """A result, if there is one."""
    path = RESULTS / f"{kind}-{name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def rendered(text: str, page: str, name: str) -> str:
    """A page with the content of every marked section replaced."""
    for section in PAGES[page]:
        kind, lines = SECTIONS[section]
        file = f"{kind}-{name}.json"
        result = load(kind, name)
        if result is None:
            content = f"Not measured yet: there is no `bench/results/{file}`."
        else:
            content = "\n".join([*lines(result), "", source(result, file)])
        pattern = re.compile(rf"(<!-- {section} -->\n).*?(<!-- /{section} -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, content=content: f"{match[1]}\n{content}\n\n{match[2]}", text)
        if count != 1:
            sys.exit(f"docs/{page} must have the section {section!r} once, it has it {count} times")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="smollm2", help="of the model, in the names of results")
    parser.add_argument("--check", action="store_true", help="fail if the pages are not up to date; draw nothing")
    options = parser.parse_args()
    for page in PAGES:
        path = DOCS / page
        old = path.read_text(encoding="utf-8")
        new = rendered(old, page, options.name)
        if options.check and old != new:
            sys.exit(f"docs/{page} is not what bench/results.py writes")
        if not options.check:
            path.write_text(new, encoding="utf-8")
    ablation = load("ablation", options.name)
    if ablation is not None and not options.check:
        from ablation_plots import save

        save(ablation, DOCS / "images", options.name)


if __name__ == "__main__":
    main()
