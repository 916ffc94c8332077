"""The examples of documentation pages give what the pages say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", ["latency.md", "speculative.md"])
def test_examples_of_a_page(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(code, {}, name, name, 0)
    assert len(test.examples) > 5
    output = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=output.append)
    assert result.failed == 0, "".join(output)
