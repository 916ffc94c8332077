"""Write the measured tables of README.md from bench/results: python bench/readme.py [--check]."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from e2e_report import timelines
from readme_tables import peers, quality, throughput
from sections import ROOT, update

#: Sections by the name in their markers: the file of results, and what makes a table of it.
SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], list[str]]]] = {
    "quality": ("quality-smollm2.json", quality),
    "throughput": ("throughput-cpu.json", throughput),
    "peers": ("peers-smollm2.json", peers),
    "timeline": ("e2e-smollm2.json", timelines),
}


def section(file: str, table: Callable[[dict[str, Any]], list[str]]) -> str:
    result: dict[str, Any] = json.loads((ROOT / "bench" / "results" / file).read_text(encoding="utf-8"))
    return "\n".join([*table(result), "", f"Source: [`bench/results/{file}`](bench/results/{file})."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if README.md is not up to date")
    parser.add_argument("--print", action="store_true", help="print the tables, and leave README.md as it is")
    options = parser.parse_args()
    contents = {name: section(file, table) for name, (file, table) in SECTIONS.items()}
    if options.print:
        for name, content in contents.items():
            print(f"<!-- {name} -->\n\n{content}\n\n<!-- /{name} -->\n")
    else:
        update("README.md", contents, check=options.check)


if __name__ == "__main__":
    main()
