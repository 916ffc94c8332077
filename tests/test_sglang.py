"""The storage backend of SGLang, with SGLang's own host pools and page functions, in an environment of its own."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import lynxq
from lynxq import Params
from lynxq.errors import MissingLibraryError
from lynxq.integrations.sglang import LynxqHiCacheStorage
from tests.cuda.tools import slow
from tests.environments import ROOT, environment

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
PAGE = 16


def test_the_backend_says_that_it_needs_sglang():
    with pytest.raises(MissingLibraryError, match="pip install sglang"):
        LynxqHiCacheStorage(None)


@pytest.fixture(scope="session")
def python() -> Path:
    """SGLang and what its cache imports; the whole of SGLang needs a GPU."""
    modules = [
        "transformers==5.19.0",
        *("triton", "orjson", "ipython", "msgspec", "pyzmq", "psutil", "pydantic", "requests", "aiohttp", "dill"),
        *("compressed-tensors", "gguf", "pybase64", "python-multipart", "tiktoken", "setuptools", "apache-tvm-ffi"),
        *("pillow", "starlette", "sentencepiece"),
    ]
    return environment("sglang", ["torch==2.13.0", *modules], without_dependencies=["sglang==0.5.23"])


def _orders(folder: Path) -> list[dict[str, Any]]:
    """Every layout into every layout, with and without copies, and what differs between pages."""
    orders: list[dict[str, Any]] = []

    def add(**changes: Any) -> None:
        number = len(orders)
        order = {"from": "layer_first", "to": "layer_first", "dtype": "bfloat16", "zero_copy": False, "options": {}}
        order |= {"pages": [1, 5, 2], "into": [7, 0, 3], "result": str(folder / f"{number}.pt")}
        order |= changes
        order["options"] = {"store": str(folder / f"store-{number}"), **order["options"]}
        orders.append(order)

    for source, target, zero_copy in itertools.product(LAYOUTS, LAYOUTS, (False, True)):
        add(**{"from": source, "to": target, "zero_copy": zero_copy, "name": "layouts"})
    for dtype in ("float16", "float32"):
        add(dtype=dtype, name="dtype")
    add(options={"tier": "anchor", "key_params": {"alpha": 1.0}}, name="anchor")
    for prefix in ([], ["0" * 64, "f" * 64]):
        add(zero_copy=True, prefix=prefix, name="prefix")
    for zero_copy in (False, True):
        add(zero_copy=zero_copy, damage=[1], name="damage")
    page = (ROOT / "docs" / "integrations" / "sglang.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"--hicache-storage-backend-extra-config '(.*?)'", page, re.DOTALL)
    options = {name: value for name, value in json.loads(command).items() if name != "store"}
    add(options=options, zero_copy=bool(options["interface_v1"]), prefix=[], name="page")
    add(reader={"rank": 1}, name="stranger")
    add(reader={"model": "another"}, name="stranger")
    return orders


REFUSED = [
    ({"dtype": "float8_e4m3fn", "options": {"store": "x"}}, "DTypeError: the host pool must be of"),
    ({"layout": "page_unified", "options": {"store": "x"}}, "UnsupportedCacheError: lynxq does not store pages"),
    ({"options": {}}, "ParamsError: a store must be a folder or an fsspec URL, got None"),
    ({"options": {"store": "x", "tier": "both"}}, "ParamsError: tier must be one of"),
    ({"options": {"store": "x", "key_params": {"page": 7}}}, "ParamsError: page must be"),
]


@pytest.fixture(scope="session")
def outcomes(python: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], Any]]:
    folder = tmp_path_factory.mktemp("sglang")
    orders = [*_orders(folder), {"refused": [case for case, _ in REFUSED], "name": "refused"}]
    (folder / "orders.json").write_text(json.dumps(orders))
    subprocess.run(
        [python, ROOT / "tests" / "sglang_pages.py", folder / "orders.json", folder / "results.json"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=True,
    )
    return list(zip(orders, json.loads((folder / "results.json").read_text()), strict=True))


def _expected(order: dict[str, Any], pages: torch.Tensor, number: int) -> torch.Tensor:
    """What lynxq makes of a page."""
    options, prefix = order["options"], order.get("prefix")
    first = 0 if prefix is None else (len(prefix) + number) * PAGE
    decode = lynxq.decode_anchor if options.get("tier") == "anchor" else lynxq.decode_full
    page = pages[order["pages"][number]]
    params = (Params.keys(**options.get("key_params", {})), Params.values())
    return torch.stack(
        [
            decode(lynxq.encode(part, each, token_axis=1, first_token=first))
            for part, each in zip(page, params, strict=True)
        ]
    )


@slow
@pytest.mark.parametrize("name", ["layouts", "dtype", "anchor", "prefix", "page"])
def test_pages_come_back_as_lynxq_decodes_them(outcomes, name):
    chosen = [(order, found) for order, found in outcomes if order["name"] == name]
    assert len(chosen) == {"layouts": 32, "dtype": 2, "anchor": 1, "prefix": 2, "page": 1}[name]
    for order, found in chosen:
        assert found == {"hits before": 0, "saved": True, "hits": 3, "loaded": 3, "hits after": 3}
        pages = torch.load(order["result"])
        for number, into in enumerate(order["into"]):
            assert torch.equal(pages["target"][into], _expected(order, pages["source"], number))
        others = [page for page in range(8) if page not in order["into"]]
        assert torch.all(pages["target"][others] == 777.0), "a page of others was written"


@slow
def test_files_do_not_depend_on_the_layout(outcomes):
    stores = [Path(order["options"]["store"]) for order, _ in outcomes if order["name"] == "layouts"]
    contents = [sorted((path.name, path.read_bytes()) for path in store.rglob("*.lynx")) for store in stores]
    assert len(contents[0]) == 3
    assert all(each == contents[0] for each in contents)


@slow
def test_a_damaged_page_is_a_miss_and_is_deleted(outcomes):
    chosen = [(order, found) for order, found in outcomes if order["name"] == "damage"]
    assert len(chosen) == 2
    for order, found in chosen:
        assert found == {"hits before": 0, "saved": True, "hits": 3, "loaded": 1, "hits after": 1}
        pages = torch.load(order["result"])
        assert torch.equal(pages["target"][order["into"][0]], _expected(order, pages["source"], 0))
        assert torch.all(pages["target"][order["into"][1]] == 777.0), "damaged data reached the pool"


@slow
def test_ranks_and_models_do_not_share_pages(outcomes):
    chosen = [found for order, found in outcomes if order["name"] == "stranger"]
    assert len(chosen) == 2
    for found in chosen:
        assert found == {"hits before": 0, "saved": True, "hits": 0, "loaded": 0, "hits after": 0}


@slow
def test_what_cannot_be_handled_is_refused(outcomes):
    (said,) = [found for order, found in outcomes if order["name"] == "refused"]
    for text, (_, expected) in zip(said, REFUSED, strict=True):
        assert text.startswith(expected)
