"""The real model: what comes out of the package is SmolLM2, and schemes do to it what is known of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lynxq import lab

TEXT = (Path(__file__).parent / "data" / "mansfield_park_excerpt.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def model():
    return lab.load()


def test_it_knows_the_capital_of_france(model):
    logits = model.forward(model.tokens("The capital of France is")[None], lab.empty_cache(), keep=1)
    assert model.text(logits[0].argmax(-1)) == " Paris"
    assert model.name.startswith("SmolLM2-135M-Instruct")


def test_its_perplexity_and_what_methods_do(model):
    passage = lab.prepare(model, TEXT, prefix=768, continuation=256)
    assert {tuple(tensor.shape) for tensor in passage.tensors.values()} == {(768, 3, 64)}
    assert len(passage.tensors) == 60
    against = lab.reference(passage, attention_errors=False, greedy=0)
    lines = {(line.method, line.tier): line for line in lab.quality(against, ["bf16", "pair", "int4"])}
    assert 39 < lines["bf16", "-"].perplexity < 44  # wrong positions, or another tokenizer, would be far off
    assert lines["bf16", "-"].kl_mean == 0
    assert 1e-4 < lines["pair", "anchor"].kl_mean < 5e-3
    assert lines["pair", "anchor"].bits_per_element < 4.75
    assert lines["pair", "full"].kl_mean < 1e-4
    assert lines["int4", "-"].kl_mean > 0.05
