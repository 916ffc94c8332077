"""The map of the code in docs/design.md: it is complete, its lines are layers, and no module is imported by itself."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split("| In `lynxq/` | What |")[1].split("\n\n")[0]
#: The line of the table that a module or package is on.
LINES = {
    name: number
    for number, line in enumerate(TABLE.splitlines())
    for name in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")
}
PATHS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "lynxq").rglob("*.py"))
}


def imported(name: str, *, inside_functions: bool) -> set[str]:
    """Modules of ours that a module names in imports; without those that are for annotations alone."""
    found = set()
    waiting: list[ast.AST] = [ast.parse(PATHS[name].read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inside_functions:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import"
            for longer in (f"{node.module}.{alias.name}" for alias in node.names):
                found.add(longer if longer in PATHS else str(node.module))
        waiting += ast.iter_child_nodes(node)
    return (found & PATHS.keys()) - {name}


def test_the_map_has_everything():
    there = {
        path.stem for path in (ROOT / "lynxq").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert there - {"__init__", "__main__"} == LINES.keys()


@pytest.mark.parametrize("name", [name for name in PATHS if name.partition(".")[2] not in {"", "__main__"}])
def test_a_module_imports_from_its_line_and_those_above(name):
    own = LINES[name.split(".")[1]]
    for other in imported(name, inside_functions=True) - {"lynxq"}:
        assert LINES[other.split(".")[1]] <= own, f"{name} imports {other}, which is on a line below in docs/design.md"


def test_no_module_waits_for_itself():
    TopologicalSorter({name: imported(name, inside_functions=False) for name in PATHS if name != "lynxq"}).prepare()
