"""On a machine with a GPU: every case, golden checksums, torch tensors. Skipped everywhere else."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lynxq
from lynxq import Params, backends, testing
from tests.cuda import cases
from tests.golden.cases import CASES as GOLDEN
from tests.golden.cases import digest
from tests.golden.regenerate import CHECKSUMS

_REASON = backends.available()["cuda"]
pytestmark = pytest.mark.skipif(_REASON is not None, reason=f"backend 'cuda': {_REASON}")


@pytest.fixture(scope="module")
def backend():
    from tests.cuda.gpu import GpuBackend

    return GpuBackend()


@pytest.mark.parametrize("name", cases.CASES)
def test_cases(backend, name):
    for seed in range(3):
        cases.check(backend, cases.CASES[name], seed)


@pytest.mark.parametrize("content", testing.CONTENTS)
@pytest.mark.parametrize("name", cases.FEW)
def test_hostile_contents(backend, name, content):
    cases.check(backend, cases.Case(**{**vars(cases.CASES[name]), "content": content}))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_checksums(name):
    import cupy

    case, known = GOLDEN[name], json.loads(CHECKSUMS.read_text(encoding="utf-8"))[name]
    x = cupy.asarray(case.make())
    encoded = lynxq.encode(x, case.params, token_axis=case.token_axis, **case.options)
    found = encoded.to_host()
    assert (digest(found.anchor), digest(found.residual)) == (known["anchor"], known["residual"])
    assert digest(lynxq.decode_anchor(encoded).get()) == known["decode_anchor"]
    assert digest(lynxq.decode_full(encoded).get()) == known["decode_full"]


def test_torch_tensors_on_their_stream():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    x = torch.randn(2, 4, 1000, 128, device="cuda", dtype=torch.bfloat16)
    with torch.cuda.stream(torch.cuda.Stream()):
        encoded = lynxq.encode(x * 1, token_axis=2, check=False)
        out = lynxq.decode_full(encoded)
    torch.cuda.synchronize()
    expected = lynxq.encode(x.cpu(), token_axis=2)
    assert torch.equal(encoded.anchor.cpu(), expected.anchor)
    assert torch.equal(encoded.residual.cpu(), expected.residual)
    assert torch.equal(out.cpu().view(torch.uint16), lynxq.decode_full(expected).view(torch.uint16))


def test_more_than_two_to_the_31_elements():
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    shape = (1 << 22, 528)
    if free < 12 << 30:
        pytest.skip("needs 12 GiB of free device memory")
    x = cupy.zeros(shape, np.float16)
    x[-1] = 1
    encoded = lynxq.encode(x, Params.keys(), token_axis=0, check=False)
    out = lynxq.decode_full(encoded)
    assert float(out[-1].min()) == 1.0
    assert float(cupy.abs(out[:-1]).max()) == 0.0
