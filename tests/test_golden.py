"""The bytes of format 1.0 are pinned, and its files are decoded, whatever computes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lynxq
from lynxq import backends
from tests.golden.cases import CASES, digest
from tests.golden.regenerate import CHECKSUMS, CONTAINERS, FILES, container

KNOWN = json.loads(CHECKSUMS.read_text(encoding="utf-8"))


def test_every_case_has_checksums_and_every_checksum_a_case():
    assert sorted(KNOWN) == sorted(CASES)


@pytest.mark.parametrize("backend", [name for name, missing in backends.available().items() if missing is None])
@pytest.mark.parametrize("name", CASES)
def test_streams_and_decodes_have_the_pinned_bytes(name, backend):
    case, known = CASES[name], KNOWN[name]
    x = case.make()
    assert digest(x) == known["input"], "the input itself is not what it was"
    encoded = lynxq.encode(x, case.params, token_axis=case.token_axis, backend=backend, **case.options)
    assert digest(encoded.anchor) == known["anchor"]
    assert digest(encoded.residual) == known["residual"]
    assert digest(lynxq.decode_anchor(encoded, backend=backend)) == known["decode_anchor"]
    assert digest(lynxq.decode_full(encoded, backend=backend)) == known["decode_full"]


def test_every_golden_file_is_known_and_there():
    assert sorted(path.name for path in FILES.iterdir()) == sorted(f"{name}.lynx" for name in CONTAINERS)


@pytest.mark.parametrize("path", sorted(Path(FILES).glob("*.lynx")), ids=lambda path: path.name)
def test_files_of_format_1_0_are_decoded(path):
    with lynxq.open(path) as reader:
        assert reader.verify() == []
        assert tuple(reader) == CONTAINERS[path.stem]
        for name, tensor in reader.items():
            tokens = slice(0, tensor.shape[tensor.token_axis])
            assert tensor.params == CASES[name].params
            for tier, key in (("anchor", "decode_anchor"), ("full", "decode_full")):
                decoded = tensor.decode(tier)
                if "valid_tokens" not in CASES[name].options:  # a container keeps valid tokens only
                    assert digest(decoded) == KNOWN[name][key]
                else:
                    encoded = lynxq.encode(CASES[name].make(), CASES[name].params, token_axis=0, **CASES[name].options)
                    whole = lynxq.decode_anchor(encoded) if tier == "anchor" else lynxq.decode_full(encoded)
                    assert digest(whole) == KNOWN[name][key]
                    assert digest(decoded) == digest(whole[tokens])


@pytest.mark.parametrize("name", CONTAINERS)
def test_writing_a_file_again_gives_the_same_bytes(name):
    assert container(CONTAINERS[name]) == (FILES / f"{name}.lynx").read_bytes()
