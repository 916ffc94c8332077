"""Texts longer than a model was made for are refused, wherever a text is given to a model, before it runs."""

import pytest
import torch
import transformers
from typer.testing import CliRunner

from lynxq import lab
from lynxq.cli import app
from lynxq.errors import ShapeError
from lynxq.lab.positions import check_length, positions_of
from tests.lab_models import KINDS, some_tokens, tiny

POSITIONS = 64


def stretched(kind, factor, positions, **more):
    rotary = {"rope_type": kind, "factor": factor, "rope_theta": 1e4, **more}
    return transformers.LlamaConfig(max_position_embeddings=positions, rope_parameters=rotary)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (transformers.LlamaConfig(max_position_embeddings=100), 100),
        (transformers.GPT2Config(n_positions=77), 77),
        (transformers.OPTConfig(max_position_embeddings=90), 90),
        (transformers.BloomConfig(), None),
        (stretched("yarn", 4.0, 100), 400),
        (stretched("yarn", 4.0, 400, original_max_position_embeddings=100), 400),
        (stretched("dynamic", 2.0, 100), 200),
        (stretched("linear", 4.0, 100), 100),
        (transformers.Gemma3TextConfig(max_position_embeddings=100), 100),
    ],
)
def test_the_positions_of_a_model_are_those_of_its_configuration(config, positions):
    assert positions_of(config) == positions


@pytest.mark.parametrize("number", [None, -1, 0, "64", 64.0])
def test_what_is_no_number_of_positions_is_no_limit(number):
    config = transformers.LlamaConfig()
    object.__setattr__(config, "max_position_embeddings", number)
    assert positions_of(config) is None
    check_length(None, 1 << 40)


class Counted:
    """A model whose forward passes are counted."""

    def __init__(self, model):
        self.model, self.passes = model, 0
        model.module.register_forward_pre_hook(self.count)

    def count(self, *_):
        self.passes += 1


@pytest.fixture
def counted():
    return Counted(tiny(max_position_embeddings=POSITIONS))


def passage(model, prefix, continuation=0):
    return lab.prepare(model, some_tokens(prefix + continuation + 1), prefix=prefix, continuation=continuation)


def rows(model, *lengths):
    whole = passage(model, max(lengths))
    return [whole.shortened(length) for length in lengths]


#: What runs a model on all of its positions, and on `more` of them: a setup, and a call with its result.
CALLS = {
    "capture": (lambda m: m, lambda m, more: lab.capture(m, some_tokens(POSITIONS + more))),
    "capture with queries": (lambda m: m, lambda m, more: lab.capture(m, some_tokens(POSITIONS + more), queries=True)),
    "prepare": (lambda m: m, lambda m, more: passage(m, 40, POSITIONS - 40 + more)),
    "reference": (
        lambda m: passage(m, 40, 8),
        lambda p, more: lab.reference(p, greedy=POSITIONS - 40 + more),
    ),
    "acceptance": (
        lambda m: passage(m, 40),
        lambda p, more: list(lab.acceptance(p, ["pair"], starts=[30, 40], draft=POSITIONS - 41 + more)),
    ),
    "draft": (
        lambda m: (m, rows(m, 30, 40)),
        lambda x, more: lab.draft(*x, torch.tensor([1, 2]), POSITIONS - 40 + more),
    ),
    "logits_of": (
        lambda m: (m, rows(m, 30, 40)),
        lambda x, more: lab.logits_of(*x, torch.ones((2, POSITIONS - 40 + more), dtype=torch.long)),
    ),
    "forward": (
        lambda m: (m, lab.cache_of(m, *rows(m, 40))),
        lambda x, more: x[0].forward(torch.ones((1, POSITIONS - 40 + more), dtype=torch.long), x[1]),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_all_positions_are_used_and_not_one_more(counted, name):
    setup, call = CALLS[name]
    ready = setup(counted.model)
    before = counted.passes
    with pytest.raises(ShapeError, match=rf"llama has {POSITIONS} positions, got \d+ tokens"):
        call(ready, 1)
    assert counted.passes == before
    call(ready, 0)
    assert counted.passes > before


@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_has_its_positions(kind):
    model = tiny(kind, max_position_embeddings=POSITIONS)
    assert model.positions == POSITIONS
    with pytest.raises(ShapeError, match=f"{kind} has {POSITIONS} positions, got {POSITIONS + 1} tokens"):
        lab.capture(model, some_tokens(POSITIONS + 1))


@pytest.mark.parametrize(
    "arguments",
    [
        ("capture", "--tokens", "65", "-o", "kv.safetensors"),
        ("quality", "--prefix", "40", "--continuation", "25", "--greedy", "0"),
        ("quality", "--prefix", "40", "--continuation", "8", "--greedy", "25"),
        ("acceptance", "--prefix", "40", "--draft", "24"),
    ],
)
def test_commands_refuse_before_the_model_runs(arguments, counted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fox.txt").write_text("the quick brown fox jumps over the lazy dog " * 8)
    monkeypatch.setattr(lab, "load", lambda *_, **__: counted.model)
    result = CliRunner().invoke(app, ["lab", arguments[0], "fox.txt", *arguments[1:], "--model", "any"])
    assert isinstance(result.exception, ShapeError)
    assert f"has {POSITIONS} positions" in str(result.exception)
    assert counted.passes == 0
