"""Write the measured tables of README.md from bench/results: python bench/report.py [--check]."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tables import peers, quality, throughput

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parent.parent / "README.md"

#: Sections by the name in their markers: the file of results, and what makes a table of it.
SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], list[str]]]] = {
    "quality": ("quality-smollm2.json", quality),
    "throughput": ("throughput-cpu.json", throughput),
    "peers": ("peers-smollm2.json", peers),
}


def section(file: str, table: Callable[[dict[str, Any]], list[str]]) -> str:
    result: dict[str, Any] = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    return "\n".join([*table(result), "", f"Source: [`bench/results/{file}`](bench/results/{file})."])


def rendered(text: str) -> str:
    """The text with the content of every marked section replaced by its table."""
    for name, (file, table) in SECTIONS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        count = len(pattern.findall(text))
        if count > 1:
            sys.exit(f"README.md must have the section {name!r} once, it has it {count} times")
        if not count:
            print(f"README.md has no section {name!r}: <!-- {name} --> to <!-- /{name} -->", file=sys.stderr)
            continue
        content = section(file, table)
        text = pattern.sub(lambda match, content=content: f"{match[1]}\n{content}\n\n{match[2]}", text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if README.md is not up to date")
    parser.add_argument("--print", action="store_true", help="print the tables, and leave README.md as it is")
    options = parser.parse_args()
    if options.print:
        for name, (file, table) in SECTIONS.items():
            print(f"<!-- {name} -->\n\n{section(file, table)}\n\n<!-- /{name} -->\n")
        return
    old = README.read_text(encoding="utf-8")
    new = rendered(old)
    if options.check:
        sys.exit(0 if old == new else "README.md is not what bench/report.py writes")
    README.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
