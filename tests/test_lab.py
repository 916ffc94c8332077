"""The lab on small random models: real caches, replaced prefixes, and what that does to a model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from lynxq import Params, baselines, evaluate, lab
from lynxq.baselines import Scheme
from lynxq.errors import DTypeError, ModelError, ParamsError, ShapeError
from lynxq.evaluate import METHODS, Method
from tests.lab_models import KINDS, VOCABULARY, some_tokens, tiny

PREFIX, CONTINUATION = 96, 40


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return tiny(request.param)


@pytest.fixture(scope="module")
def llama():
    return tiny("llama")


@pytest.fixture(scope="module")
def passage(llama):
    return lab.prepare(llama, some_tokens(200), prefix=PREFIX, continuation=CONTINUATION)


@pytest.fixture(scope="module")
def reference(passage):
    return lab.reference(passage, greedy=12)


def full_forward(model, ids):
    """Logits of a whole text without any cache."""
    with torch.no_grad():
        return model.module(input_ids=ids[None], use_cache=False).logits[0]


class Identity(Scheme):
    """Keeps every value, and what it was told of the tensor."""

    name, title = "identity", "identity"

    def __init__(self):
        self.seen = []

    def compress(self, values, context):
        self.seen.append((context.layer, context.first_token, context.head_dim, context.shape))
        return {"values": values.copy()}

    def restore(self, parts, context):
        return parts["values"]


class Zero(Identity):
    name = title = "zero"

    def compress(self, values, context):
        return {"values": np.zeros_like(values)}


# --- captures --------------------------------------------------------------------------------------


def test_a_capture_is_what_attention_sees(model):
    ids = some_tokens(50)
    captured = lab.capture(model, ids, dtype="float32", queries=True)
    layers = range(2)
    assert list(captured.tensors) == [f"layer.{i}.{kind}" for i in layers for kind in ("key", "value")]
    assert list(captured.queries) == [f"layer.{i}.query" for i in layers]
    with lab.recorded(model) as calls:
        model.forward(ids[None], lab.empty_cache())
    for call in calls:
        for found, expected in (
            (captured.tensors[f"layer.{call.layer}.key"], call.keys),
            (captured.tensors[f"layer.{call.layer}.value"], call.values),
            (captured.queries[f"layer.{call.layer}.query"], call.queries),
        ):
            assert found.is_contiguous()
            assert torch.equal(found, expected[0].transpose(0, 1))


@pytest.mark.parametrize("kind", ["llama", "llama-eager", "every-head-its-own", "attention-bias", "qwen2", "gpt2"])
def test_captured_queries_and_keys_give_the_output_of_attention(kind):
    model = tiny(kind)
    ids = some_tokens(30)
    captured = lab.capture(model, ids, dtype="float32", queries=True)
    with lab.recorded(model) as calls:
        model.forward(ids[None], lab.empty_cache())
    for call in calls:
        q = captured.queries[f"layer.{call.layer}.query"].double()
        k, v = (captured.tensors[f"layer.{call.layer}.{kind}"].double() for kind in ("key", "value"))
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        logits = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[2])
        logits.masked_fill_(~torch.ones(30, 30, dtype=torch.bool).tril(), -math.inf)
        output = torch.einsum("hqk,khd->qhd", logits.softmax(-1), v)
        torch.testing.assert_close(call.output[0].double(), output, rtol=1e-4, atol=1e-5)


def test_captures_are_rounded_to_nearest(llama):
    ids = some_tokens(50)
    exact, rounded = (lab.capture(llama, ids, dtype=dtype).tensors for dtype in ("float32", "bfloat16"))
    for name in exact:
        assert rounded[name].dtype is torch.bfloat16
        assert torch.equal(rounded[name], exact[name].bfloat16())


def test_a_capture_is_a_file_that_evaluate_reads(llama, tmp_path):
    from lynxq.tensorfile import open_tensors

    captured = lab.capture(llama, "It is a truth universally acknowledged", queries=True)
    captured.save(tmp_path / "kv.safetensors", tmp_path / "queries.safetensors")
    with open_tensors(tmp_path / "kv.safetensors") as file:
        stored, metadata = dict(file.items()), file.metadata
    assert metadata["model"] == "llama"
    assert metadata["tokens"] == "38"
    for name, tensor in captured.tensors.items():
        assert stored[name].dtype.name == "bfloat16"
        assert stored[name].tobytes() == tensor.view(torch.int16).numpy().tobytes()
    with open_tensors(tmp_path / "queries.safetensors") as file:
        assert file.names == list(captured.queries)
    assert {row.kind for row in evaluate.evaluate(stored, ["pair"], token_axis=0)} == {"key", "value"}


# --- caches ----------------------------------------------------------------------------------------


def test_a_model_continues_from_a_captured_cache_as_if_it_had_read_the_prefix(model):
    ids = some_tokens(120)
    prefix = lab.capture(model, ids[:70], dtype="float32").tensors
    logits = model.forward(ids[None, 70:], lab.cache_of(model, prefix))[0]
    torch.testing.assert_close(logits, full_forward(model, ids)[70:], rtol=1e-4, atol=1e-4)


def test_the_tensors_of_a_cache_are_those_that_it_was_made_of(llama):
    tensors = lab.capture(llama, some_tokens(33), dtype="float32").tensors
    cache = lab.cache_of(llama, tensors, reserve=5)
    found = lab.tensors_of(cache)
    assert list(found) == list(tensors)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    part = lab.tensors_of(cache, dtype="bfloat16", start=3, stop=9)["layer.1.value"]
    assert torch.equal(part, tensors["layer.1.value"][3:9].bfloat16())


@pytest.mark.parametrize("reserve", [0, 3, 4, 20])
def test_a_cache_grows_within_its_reserve_and_beyond(llama, reserve):
    ids = some_tokens(60)
    tensors = lab.capture(llama, ids[:40], dtype="float32").tensors
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    cache = lab.cache_of(llama, tensors, reserve=reserve)
    steps = [llama.forward(ids[None, start : start + 2], cache)[0] for start in range(40, 60, 2)]
    torch.testing.assert_close(torch.cat(steps), full_forward(llama, ids)[40:], rtol=1e-4, atol=1e-4)
    assert cache.get_seq_length() == 60
    assert all(torch.equal(tensors[name], kept[name]) for name in tensors)


def test_rows_of_unequal_lengths_give_what_each_gives_alone(model):
    ids = some_tokens(120)
    whole = lab.capture(model, ids, dtype="float32").tensors
    rows = [{name: tensor[:length] for name, tensor in whole.items()} for length in (33, 90, 60)]
    following = some_tokens(3 * 10, seed=1).reshape(3, 10)
    together = lab.logits_of(model, rows, following)
    for row, tokens, logits in zip(rows, following, together, strict=True):
        alone = lab.logits_of(model, [row], tokens[None])[0]
        torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-4)


def test_caches_must_be_whole_and_fit(llama):
    tensors = dict(lab.capture(llama, some_tokens(20)).tensors)
    with pytest.raises(ShapeError, match=r"layer\.1\.value must have shape \(20, 2, 16\), got \(19, 2, 16\)"):
        lab.cache_of(llama, tensors | {"layer.1.value": tensors["layer.1.value"][1:]})
    del tensors["layer.1.value"]
    with pytest.raises(ShapeError, match=r"needs a tensor layer\.1\.value"):
        lab.cache_of(llama, tensors)
    with pytest.raises(ShapeError, match="at least one layer"):
        lab.cache_of(llama, {})
    cache = lab.empty_cache()
    llama.forward(some_tokens(20).reshape(2, 10), cache)
    with pytest.raises(ShapeError, match="one row, got 2"):
        lab.tensors_of(cache)


# --- attention -------------------------------------------------------------------------------------


def test_replayed_attention_is_the_recorded_one_and_errors_are_those_of_the_prefix(model):
    passage = lab.prepare(model, some_tokens(200), prefix=PREFIX, continuation=CONTINUATION)
    reference = lab.reference(passage, greedy=0)
    assert [call.layer for call in reference.calls] == [0, 1]
    for call in reference.calls:
        assert torch.equal(call.attend(call.keys, call.values), call.output)
        pair = [passage.tensors[f"layer.{call.layer}.{kind}"] for kind in ("key", "value")]
        assert call.error(*pair).per_head == (0.0,) * call.queries.shape[1]
        assert all(error > 0 for error in call.error(pair[0], torch.zeros_like(pair[1])).per_head)


def test_attention_errors_are_those_of_the_metric(passage, reference):
    from lynxq.metrics import attention_output_error

    scores = lab.score(reference, next(lab.reconstructions(passage.tensors, "pair")).tensors)
    near = next(lab.reconstructions(passage.tensors, "pair")).tensors
    for call, found in zip(reference.calls, scores.attention, strict=True):
        queries, keys, values = (x[0].transpose(0, 1).numpy() for x in (call.queries, call.keys, call.values))
        keys_hat, values_hat = keys.copy(), values.copy()
        keys_hat[:PREFIX] = near[f"layer.{call.layer}.key"].float().numpy()
        values_hat[:PREFIX] = near[f"layer.{call.layer}.value"].float().numpy()
        expected = attention_output_error(queries, keys, values, keys_hat, values_hat)
        np.testing.assert_allclose(found.per_head, expected.per_head, rtol=1e-3)


def test_recording_ends_with_its_block_also_after_an_error(model):
    before = model.module.config._attn_implementation
    kept = []

    def fail():
        with lab.recorded(model) as calls:
            kept.append(calls)
            model.forward(some_tokens(5)[None], lab.empty_cache())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (calls,) = kept
    assert len(calls) == 2
    assert model.module.config._attn_implementation == before
    model.forward(some_tokens(5)[None], lab.empty_cache())
    assert len(calls) == 2


# --- reconstructions -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.available])
def test_bits_and_errors_are_those_of_evaluate(passage, name):
    rows = {(row.tier, row.kind): row for row in evaluate.evaluate(passage.tensors, [name], token_axis=0)}
    made = list(lab.reconstructions(passage.tensors, name))
    assert {near.tier for near in made} == {tier for tier, _ in rows}
    for near in made:
        for kind, part in (("key", near.keys), ("value", near.values)):
            row = rows[near.tier, kind]
            assert (part.nbytes, part.bits_per_element) == (row.nbytes, row.bits_per_element)
            assert part.errors.vnmse == pytest.approx(row.vnmse)
        assert near.elements == sum(tensor.numel() for tensor in passage.tensors.values())


def test_coders_are_told_layer_and_place(passage):
    scheme = Identity()
    list(lab.reconstructions(passage.tensors, Method("i", "i", scheme, scheme), first_token=7))
    shape = (PREFIX, 2, 16)
    assert scheme.seen == [(layer, 7, 16, shape) for layer in (0, 0, 1, 1)]


def test_sinks_are_exact_at_the_beginning_of_a_sequence_only(passage):
    for first, exact in ((0, True), (4, False)):
        near = next(lab.reconstructions(passage.tensors, "pair", first_token=first))
        assert all(torch.equal(near.tensors[n][:4], t[:4]) for n, t in passage.tensors.items()) is exact


def test_each_tensor_may_have_parameters_of_its_own(passage):
    coders = {name: Params.keys(alpha=1.0 + i) for i, name in enumerate(passage.tensors)}
    coders["layer.1.value"] = baselines.get("int8")
    own = lab.PerTensor("own", "one for each", coders)
    anchor, full = lab.reconstructions(passage.tensors, own)
    assert (anchor.tier, full.tier) == ("anchor", "full")
    assert torch.equal(anchor.tensors["layer.1.value"], full.tensors["layer.1.value"])
    uniform = Method("one", "one", coders["layer.1.key"], Params.values())
    assert torch.equal(
        anchor.tensors["layer.1.key"], next(lab.reconstructions(passage.tensors, uniform)).tensors["layer.1.key"]
    )
    with pytest.raises(ParamsError, match=r"nothing to code tensor 'layer\.0\.key'"):
        list(lab.reconstructions(passage.tensors, lab.PerTensor("none", "none", {})))


def test_only_wanted_tiers_are_decoded(passage):
    (full,) = lab.reconstructions(passage.tensors, "pair", wanted=["full"])
    assert full.tier == "full"
    with pytest.raises(ParamsError, match="method int8 has the tiers -, got 'full'"):
        list(lab.reconstructions(passage.tensors, "int8", wanted=["full"]))


def test_names_must_tell_keys_from_values(passage):
    with pytest.raises(ParamsError, match="got 'latent'"):
        list(lab.reconstructions({"latent": passage.tensors["layer.0.key"]}, "pair"))


# --- quality ---------------------------------------------------------------------------------------


def test_the_identity_changes_nothing_at_all(model):
    passage = lab.prepare(model, some_tokens(200), prefix=PREFIX, continuation=CONTINUATION)
    scheme = Identity()
    reference = lab.reference(passage, greedy=12)
    for line in lab.quality(reference, ["bf16", Method("identity", "identity", scheme, scheme)]):
        assert (line.kl_mean, line.kl_p99, line.top1, line.attention_error) == (0.0, 0.0, 1.0, 0.0)
        assert line.perplexity == line.perplexity_exact
        assert line.divergence is None
        assert line.vnmse_key == line.vnmse_value == 0
    lines = lab.acceptance(passage, ["bf16"], starts=[20, 96, 50], draft=16)
    assert [(line.accepted, line.token_rate, line.target) for line in lines] == [((16, 16, 16), 1.0, "exact")]


def test_a_lost_prefix_is_noticed(model):
    passage = lab.prepare(model, some_tokens(200), prefix=PREFIX, continuation=CONTINUATION)
    (line,) = lab.quality(lab.reference(passage, greedy=12), [Method("zero", "zero", Zero(), Zero())])
    assert line.kl_mean > 1e-4
    assert line.attention_error > 0.05
    assert line.vnmse_key == line.vnmse_value == 1


@pytest.mark.parametrize("name", [f"layer.{i}.{kind}" for i in range(2) for kind in ("key", "value")])
def test_every_tensor_of_the_prefix_counts(passage, reference, name):
    scores = lab.score(reference, passage.tensors | {name: 2 * passage.tensors[name]})
    assert scores.kl.min() >= 0
    assert scores.kl.mean() > 0
    hit = int(name.split(".")[1])
    assert [error.pooled > 0 for error in scores.attention] == [layer == hit for layer in range(2)]


def test_scores_are_what_a_plain_computation_gives(llama, passage, reference):
    near = next(lab.reconstructions(passage.tensors, "int4")).tensors
    scores = lab.score(reference, near)
    ids = passage.tokens
    exact, replaced = (
        llama.forward(ids[None, PREFIX:-1], lab.cache_of(llama, tensors))[0].double().numpy()
        for tensors in (passage.tensors, near)
    )
    p, q = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (exact, replaced))
    np.testing.assert_allclose(scores.kl, (p * np.log(p / q)).sum(1), rtol=1e-6, atol=1e-12)
    assert np.array_equal(scores.agrees, p.argmax(1) == q.argmax(1))
    nll = -np.log(q[np.arange(CONTINUATION), ids[PREFIX + 1 :].numpy()])
    np.testing.assert_allclose(scores.nll, nll, rtol=1e-6)
    assert scores.perplexity == pytest.approx(np.exp(nll.mean()))
    (line,) = lab.quality(reference, ["int4"])
    assert line.kl_p99 == np.percentile(scores.kl, 99)
    assert line.kl_mean == scores.kl.mean()
    assert line.top1 == scores.agrees.mean()


def greedy(model, tensors, first, count):
    """Greedy decoding as one would write it down, with the cache of transformers."""
    cache = transformers.DynamicCache()
    for number in range(2):
        pair = (tensors[f"layer.{number}.{kind}"].float().transpose(0, 1)[None] for kind in ("key", "value"))
        cache.update(*pair, number)
    tokens = [int(first)]
    for _ in range(count):
        tokens.append(int(model.forward(torch.tensor([[tokens[-1]]]), cache)[0, -1].argmax()))
    return tokens[1:]


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


@pytest.mark.parametrize("method", ["pair", "int4", "kivi2", "lynx-int4"])
def test_divergence_is_where_decoding_token_by_token_diverges(llama, passage, reference, method):
    near = next(lab.reconstructions(passage.tensors, method)).tensors
    first = passage.tokens[PREFIX]
    exact = greedy(llama, passage.tensors, first, 12)
    assert reference.greedy.tolist() == exact
    same = common(exact, greedy(llama, near, first, 12))
    assert lab.score(reference, near).divergence == (None if same == 12 else same)


def test_what_is_not_asked_for_is_not_measured(passage):
    bare = lab.reference(passage, attention_errors=False, greedy=0)
    (line,) = lab.quality(bare, ["int4"])
    (whole,) = lab.quality(lab.reference(passage, greedy=4), ["int4"])
    assert (line.kl_mean, line.perplexity) == (whole.kl_mean, whole.perplexity)
    assert math.isnan(line.attention_error)
    assert (line.layer_attention_errors, line.divergence, line.greedy_tokens) == ((), None, 0)


def test_methods_are_checked_before_anything_runs(passage, reference):
    done = []
    for call in (lab.quality, lab.acceptance):
        with pytest.raises(ParamsError, match="'nonsense'"):
            call(reference if call is lab.quality else passage, ["pair", "nonsense"], progress=done.append)
    list(lab.quality(reference, ["int8", "int4"], progress=done.append))
    assert done == ["int8", "int4"]


def test_replacements_must_have_the_shapes_of_the_prefix(passage, reference):
    short = {name: tensor[1:] for name, tensor in passage.tensors.items()}
    with pytest.raises(ShapeError, match=r"layer\.0\.key must have shape \(96, 2, 16\), got \(95, 2, 16\)"):
        lab.score(reference, short)
    with pytest.raises(ShapeError, match="no such tensor"):
        lab.score(reference, {})


# --- acceptance ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["pair", "int4"])
def test_greedy_acceptance_is_the_common_beginning_of_two_decodes(llama, passage, method):
    starts = (30, 96, 61)
    (line,) = lab.acceptance(passage, [method], starts=starts, draft=16)
    expected = []
    for start in starts:
        prefix = passage.shortened(start)
        made = list(lab.reconstructions(prefix, method))
        better = prefix if line.target == "exact" else made[-1].tensors
        first = passage.tokens[start]
        expected.append(common(*(greedy(llama, tensors, first, 16) for tensors in (made[0].tensors, better))))
    assert line.accepted == tuple(expected)
    assert line.starts == starts
    assert line.mean_accepted == sum(expected) / 3
    assert line.at_least == tuple(sum(n >= k for n in expected) / 3 for k in range(17))


def test_what_verifies_is_the_full_decode_or_the_exact_cache(passage):
    ((full,), (exact,)) = (
        list(lab.acceptance(passage, ["pair"], starts=2, draft=4, exact=exact)) for exact in (False, True)
    )
    assert (full.tier, full.target, exact.target) == ("anchor", "full", "exact")
    assert full.bits_per_element == exact.bits_per_element


def test_sampled_acceptance_follows_its_seed_and_its_rate_is_a_probability(passage):
    run = [
        next(lab.acceptance(passage, ["int4"], starts=[40] * 20, draft=8, temperature=1.0, seed=seed))
        for seed in (0, 0, 1)
    ]
    kept = [(line.accepted, line.token_rate) for line in run]
    assert kept[0] == kept[1] != kept[2]
    assert len(set(run[0].accepted)) > 1
    for line in run:
        # Each draft ends at its first rejection: the rate that this shows is near the one that is computed.
        ended = sum(count < 8 for count in line.accepted)
        shown = sum(line.accepted) / (sum(line.accepted) + ended)
        assert abs(shown - line.token_rate) < 0.05
        assert 0.9 < line.token_rate < 1


def test_starts_of_a_passage(passage):
    assert lab.default_starts(passage, 4) == (60, 72, 84, 96)
    assert lab.default_starts(passage, 1) == (96,)
    for wrong in (0, 49, [], [0], [97]):
        with pytest.raises(ShapeError):
            lab.acceptance(passage, ["pair"], starts=wrong)
    with pytest.raises(ParamsError, match="temperature"):
        lab.acceptance(passage, ["pair"], temperature=-1.0)


# --- passages and models ---------------------------------------------------------------------------


def test_a_passage_is_cut_from_its_text(llama):
    ids = some_tokens(64)
    passage = lab.prepare(llama, ids, prefix=20, continuation=10, start=5, name="some")
    assert torch.equal(passage.tokens, ids[5:36])
    assert (passage.prefix, passage.following, passage.name) == (20, 11, "some")
    expected = lab.capture(llama, ids[5:25]).tensors
    assert all(torch.equal(passage.tensors[name], expected[name]) for name in expected)
    with pytest.raises(ShapeError, match="must have 61 tokens for a prefix of 40 and a continuation of 20, got 59"):
        lab.prepare(llama, ids, prefix=40, continuation=20, start=5)
    with pytest.raises(ShapeError, match="continuation of at least one token"):
        lab.reference(lab.prepare(llama, ids, prefix=20, continuation=0))


@given(st.integers(1, PREFIX))
def test_earlier_tokens_do_not_depend_on_later_ones(passage, length):
    short = passage.shortened(length)
    alone = lab.capture(passage.model, passage.tokens[:length], dtype="float32").tensors
    for name, tensor in short.items():
        torch.testing.assert_close(tensor.float(), alone[name], rtol=1e-2, atol=1e-3)


def test_tokens_are_checked(llama):
    assert llama.tokens("AB").tolist() == [33, 34]
    assert llama.text(torch.tensor([33])) == "A"
    assert llama.tokens(np.array([1, 2], np.int32)).dtype is torch.int64
    for wrong, error in (
        (torch.zeros(2), DTypeError),
        (torch.zeros(2, 2, dtype=torch.int64), ShapeError),
        (torch.tensor([0, VOCABULARY]), ParamsError),
        (torch.tensor([-1]), ParamsError),
    ):
        with pytest.raises(error):
            llama.tokens(wrong)
    mute = lab.LanguageModel("mute", llama.module)
    with pytest.raises(ModelError, match="mute has no tokenizer"):
        mute.tokens("text")
    with pytest.raises(ShapeError, match="at least one token"):
        lab.capture(llama, "")


def test_bfloat16_models_compute_in_bfloat16():
    model = tiny("llama")
    model.module.to(torch.bfloat16)
    passage = lab.prepare(model, some_tokens(200), prefix=64, continuation=16)
    (line,) = lab.quality(lab.reference(passage, greedy=4), ["bf16"])
    assert (line.kl_mean, line.top1, line.divergence) == (0.0, 1.0, None)
    assert lab.cache_of(model, passage.tensors).layers[0].keys.dtype is torch.bfloat16


def test_models_with_other_state_than_keys_and_values_are_refused(llama):
    config = transformers.LlamaConfig(num_hidden_layers=2)
    config.layer_types = ["full_attention", "linear_attention"]

    class Hybrid:
        pass

    Hybrid.config = config
    with pytest.raises(ModelError, match="got linear_attention"):
        lab.LanguageModel("hybrid", Hybrid)
