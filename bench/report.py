"""Write the measured tables of README.md from bench/results: python bench/report.py [--check]."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from environment import RESULTS

README = Path(__file__).parent.parent / "README.md"


def quality(path: Path) -> str:
    """A table of methods, keys and values side by side."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for row in result["rows"]:
        cells.setdefault((row["method"], row["tier"]), {})[row["kind"]] = row
    lines = [
        "| method | tier | bits K / V | vNMSE K / V | centred vNMSE K / V |",
        "|---|---|---|---|---|",
    ]
    for (method, tier), kinds in cells.items():
        key, value = kinds["key"], kinds["value"]
        lines.append(
            f"| {result['titles'][method]} | {tier} "
            f"| {key['bits_per_element']:.2f} / {value['bits_per_element']:.2f} "
            f"| {key['vnmse']:.1e} / {value['vnmse']:.1e} "
            f"| {key['centred_vnmse']:.1e} / {value['centred_vnmse']:.1e} |"
        )
    lines += ["", f"Source: [`bench/results/{path.name}`](bench/results/{path.name})."]
    return "\n".join(lines)


SECTIONS = {"quality": lambda: quality(RESULTS / "quality-smollm2.json")}


def rendered(text: str) -> str:
    """The text with the content of every marked section replaced by its table."""
    for name, table in SECTIONS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, table=table: f"{match[1]}\n{table()}\n\n{match[2]}", text)
        if count != 1:
            sys.exit(f"README.md must have the section {name!r} once, it has it {count} times")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if README.md is not up to date")
    options = parser.parse_args()
    old = README.read_text(encoding="utf-8")
    new = rendered(old)
    if options.check:
        sys.exit(0 if old == new else "README.md is not what bench/report.py writes")
    README.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
