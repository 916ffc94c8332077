"""Write the tables of docs/results.md and docs/calibration.md, and the figures: python bench/results.py [--check]."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from results_tables import SECTIONS, source
from sections import ROOT, update

#: Pages and the sections that they must have.
PAGES: Mapping[str, tuple[str, ...]] = {
    "docs/results.md": tuple(name for name in SECTIONS if name != "calibration"),
    "docs/calibration.md": ("calibration",),
}


def load(kind: str, name: str) -> dict[str, Any] | None:
    """A result, if there is one."""
    path = ROOT / "bench" / "results" / f"{kind}-{name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def content(section: str, name: str) -> str:
    """What a section holds."""
    kind, lines = SECTIONS[section]
    file, result = f"{kind}-{name}.json", load(kind, name)
    if result is None:
        return f"Not measured yet: there is no `bench/results/{file}`."
    return "\n".join([*lines(result), "", source(result, file)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="smollm2", help="of the model, in the names of results")
    parser.add_argument("--check", action="store_true", help="fail if the pages are not up to date; draw nothing")
    options = parser.parse_args()
    for page, names in PAGES.items():
        update(page, {section: content(section, options.name) for section in names}, check=options.check)
    ablation = load("ablation", options.name)
    if ablation is not None and not options.check:
        from ablation_plots import save

        save(ablation, ROOT / "docs" / "images", options.name)


if __name__ == "__main__":
    main()
