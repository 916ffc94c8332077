"""The pool of threads: ranges, interrupts, and arithmetic that no caller can spoil."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

import lynxq
from lynxq import Params, threads
from lynxq.paged import decode_full_paged, encode_paged


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("units", [0, 1, 2, 7, 63, 64, 65, 1000])
def test_every_unit_once(units, count):
    done, lock = [], threading.Lock()

    def work(first, last):
        with lock:
            done.extend(range(first, last))

    threads.run(work, units, count)
    assert sorted(done) == list(range(units))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, IndexError])
def test_after_an_exception_nothing_works_on(error):
    working, started = set(), threading.Event()

    def work(first, last):
        if threading.current_thread() is threading.main_thread():
            started.wait(5)
            raise error
        working.add(first)
        started.set()
        time.sleep(0.05)
        working.discard(first)

    with pytest.raises(error):
        threads.run(work, 100, 4)
    assert working == set()


def test_an_exception_of_a_helper_is_raised():
    def work(first, last):
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("from a helper")
        time.sleep(0.05)

    with pytest.raises(ValueError, match="from a helper"):
        threads.run(work, 8, 2)


def test_a_caller_that_flushes_subnormals_spoils_no_later_call():
    x = (np.random.default_rng(0).standard_normal((4096, 64)) * 1e-40).astype(np.float32)
    expected = lynxq.encode(x, token_axis=0, threads=1).anchor.tobytes()
    threads._forget()
    torch.set_flush_denormal(True)
    try:
        lynxq.encode(x, token_axis=0, threads=4)
    finally:
        torch.set_flush_denormal(False)
    for count in (1, 2, 4, 8):
        assert lynxq.encode(x, token_axis=0, threads=count).anchor.tobytes() == expected


def test_paged_output_follows_the_rules_of_out():
    cache, table = torch.randn(4, 2, 16, 8), torch.tensor([0, 1], dtype=torch.int32)
    encoded = encode_paged(cache, table, Params.keys(), tokens=20)
    zero = torch.zeros(4, 2, 16, 8)
    for target in (torch.complex(zero, zero).conj().imag, torch.zeros(4, 2, 16, 8, requires_grad=True)):
        with pytest.raises(lynxq.errors.DTypeError, match="cache must not"):
            decode_full_paged(encoded, target, table)
    weight = torch.ones(4, 2, 16, 8, requires_grad=True)
    saved = weight.exp()
    target = saved.detach()
    decode_full_paged(encoded, target, table)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
    with torch.inference_mode():
        decode_full_paged(encoded, torch.zeros(4, 2, 16, 8), table)
