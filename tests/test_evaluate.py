"""lynxq.evaluate against encoding, decoding and measuring by hand."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

import lynxq
from lynxq import Params, baselines
from lynxq.baselines import Scheme
from lynxq.errors import DTypeError, NonFiniteError, ParamsError
from lynxq.evaluate import DEFAULT_METHODS, METHODS, Method, evaluate


def cache():
    rng = np.random.default_rng(0)
    return {
        f"layer.{layer}.{kind}": (rng.standard_normal((300 + layer, 2, 64)) * (layer + 1)).astype(ml_dtypes.bfloat16)
        for layer in (0, 5)
        for kind in ("key", "value")
    }


def direct(pairs, nbytes, token_axis=0):
    """Bits, vNMSE, centred vNMSE and largest error of pooled tensors, by plain numpy."""
    pairs = [(x.astype(np.float64), x_hat.astype(np.float64)) for x, x_hat in pairs]
    error = sum(((x - x_hat) ** 2).sum() for x, x_hat in pairs)
    return (
        8 * nbytes / sum(x.size for x, _ in pairs),
        error / sum((x**2).sum() for x, _ in pairs),
        error / sum(((x - x.mean(token_axis)) ** 2).sum() for x, _ in pairs),
        max(np.abs(x - x_hat).max() for x, x_hat in pairs),
    )


def figures(row):
    return row.bits_per_element, row.vnmse, row.centred_vnmse, row.max_error


def test_the_codec_is_measured_as_by_hand():
    tensors = cache()
    rows = {(row.tier, row.kind): row for row in evaluate(tensors, ["pair"], token_axis=0)}
    assert list(rows) == [("anchor", "key"), ("anchor", "value"), ("full", "key"), ("full", "value")]
    for kind, params in (("key", Params.keys()), ("value", Params.values())):
        chosen = [x for name, x in tensors.items() if name.endswith(kind)]
        coded = [lynxq.encode(x, params, token_axis=0) for x in chosen]
        anchor = [(x, lynxq.decode_anchor(e)) for x, e in zip(chosen, coded, strict=True)]
        full = [(x, lynxq.decode_full(e)) for x, e in zip(chosen, coded, strict=True)]
        anchor_bytes = sum(e.anchor.nbytes for e in coded)
        full_bytes = anchor_bytes + sum(e.residual.nbytes for e in coded)
        assert figures(rows["anchor", kind]) == pytest.approx(direct(anchor, anchor_bytes), rel=1e-12)
        assert figures(rows["full", kind]) == pytest.approx(direct(full, full_bytes), rel=1e-12)
        assert rows["full", kind].nbytes == full_bytes
        assert rows["full", kind].tensors == 2
        assert rows["full", kind].elements == (300 + 305) * 128


@pytest.mark.parametrize("name", ["int8", "int4", "bf16"])
def test_baselines_are_measured_as_by_hand(name):
    tensors = cache()
    rows = evaluate(tensors, [name], token_axis=0)
    assert [(row.method, row.tier, row.kind) for row in rows] == [(name, "-", "key"), (name, "-", "value")]
    for row in rows:
        chosen = [x for key, x in tensors.items() if key.endswith(row.kind)]
        coded = [baselines.get(name).encode(x, token_axis=0) for x in chosen]
        pairs = [(x, c.decode()) for x, c in zip(chosen, coded, strict=True)]
        assert figures(row) == pytest.approx(direct(pairs, sum(c.nbytes for c in coded)), rel=1e-12)


def test_rows_are_ordered_by_method_tier_and_kind():
    tensors = {"b.value": np.ones((20, 4), np.float32), "a.latent": np.ones((20, 4), np.float32), **cache()}
    rows = evaluate(tensors, ["int4", "keys"], token_axis=0)
    kinds = ["key", "value", "other"]
    expected = [("int4", "-", kind) for kind in kinds]
    expected += [("keys", tier, kind) for tier in ("anchor", "full") for kind in kinds]
    assert [(row.method, row.tier, row.kind) for row in rows] == expected


def test_default_methods_and_their_parameters():
    rows = evaluate(cache(), token_axis=0)
    assert tuple(dict.fromkeys(row.method for row in rows)) == DEFAULT_METHODS
    assert set(DEFAULT_METHODS) <= set(METHODS)
    assert set(baselines.SCHEMES) <= set(METHODS)
    assert (METHODS["pair"].keys, METHODS["pair"].values) == (Params.keys(), Params.values())
    assert (METHODS["keys"].keys, METHODS["keys"].values) == (Params.keys(), Params.keys())
    assert (METHODS["paper"].keys, METHODS["paper"].values) == (Params.paper(), Params.paper())
    by_place = {(row.method, row.tier, row.kind): row for row in rows}
    for kind in ("key", "value"):
        assert by_place["keys", "full", kind].vnmse < by_place["int8", "-", kind].vnmse
        assert by_place["keys", "anchor", kind].vnmse < by_place["int4", "-", kind].vnmse
        assert by_place["keys", "anchor", kind].vnmse < by_place["paper", "anchor", kind].vnmse
        assert by_place["pair", "full", kind].vnmse < by_place["pair", "anchor", kind].vnmse


def test_an_iterable_is_read_one_tensor_at_a_time_and_progress_is_told():
    events = []

    def tensors():
        for name, x in cache().items():
            events.append(f"read {name}")
            yield name, x

    rows = evaluate(tensors(), ["int8", "int4"], token_axis=0, progress=lambda *step: events.append(step))
    assert rows == evaluate(cache(), ["int8", "int4"], token_axis=0)
    steps = [[f"read {name}", (name, "int8"), (name, "int4")] for name in cache()]
    assert events == [event for step in steps for event in step]


def test_kind_can_be_overridden():
    rows = evaluate(cache(), ["pair"], token_axis=0, kind_of=lambda name: "value" if ".0." in name else None)
    assert [(row.tier, row.kind, row.tensors) for row in rows] == [
        ("anchor", "value", 2),
        ("anchor", "other", 2),
        ("full", "value", 2),
        ("full", "other", 2),
    ]
    assert rows[1].bits_per_element > rows[0].bits_per_element  # others are coded with the keys preset


def test_methods_of_your_own():
    class PerKind(Scheme):
        name, title = "per kind", "a scheme that treats keys and values differently"

        def __init__(self, kind=None):
            self.kind = kind

        def for_kind(self, kind):
            return PerKind(kind)

        def compress(self, values, context):
            del values, context
            return {"none": np.zeros(0, np.uint8)}

        def restore(self, parts, context):
            del parts
            return np.full(context.block, {"key": 0.0, "value": np.nan, None: 1.0}[self.kind], np.float32)

    mine = Method("5+3", "split 5+3", Params.keys(anchor_bits=5, residual_bits=3), Params.values())
    rows = evaluate(cache(), [mine, Method.of_scheme(PerKind())], token_axis=0)
    assert [row.method for row in rows] == ["5+3"] * 4 + ["per kind"] * 2
    assert rows[0].bits_per_element > rows[1].bits_per_element + 0.9
    assert [row.vnmse for row in rows[4:]] == [1.0, math.inf]
    assert rows[4].nbytes == 0


def test_torch_tensors_with_another_token_axis():
    tensors = cache()
    turned = {
        name: torch.as_tensor(x.astype(np.float32)).bfloat16().permute(1, 0, 2)[None] for name, x in tensors.items()
    }
    before, after = (evaluate(x, ["keys", "int4"], token_axis=axis) for x, axis in ((tensors, 0), (turned, 2)))
    for one, other in zip(before, after, strict=True):
        assert other.vnmse == pytest.approx(one.vnmse, rel=1e-12)
        assert other.centred_vnmse == pytest.approx(one.centred_vnmse, rel=1e-12)
        assert other.max_error == one.max_error


def test_nothing_and_empty_tensors():
    assert evaluate({}, token_axis=0) == []
    for row in evaluate({"key": np.zeros((0, 4), np.float32)}, token_axis=0):
        assert (row.tensors, row.elements, *figures(row)) == (1, 0, 0.0, 0.0, 0.0, 0.0)


def test_errors_name_the_method_or_the_tensor():
    with pytest.raises(ParamsError, match=r"method must be one of pair, pair-4\+3, keys, .*, got 'int5'"):
        evaluate(cache(), ["int5"], token_axis=0)
    with pytest.raises(ParamsError, match="'int4' twice"):
        evaluate(cache(), ["int4", "int4"], token_axis=0)
    bad = np.full((9, 2), np.nan, np.float32)
    with pytest.raises(NonFiniteError) as caught:
        evaluate({"layer.3.key": bad}, ["keys"], token_axis=0)
    assert caught.value.__notes__ == ["tensor 'layer.3.key', method 'keys'"]
    with pytest.raises(DTypeError) as wrong:
        evaluate({"layer.3.key": bad.astype(np.float64)}, ["int4"], token_axis=0)
    assert wrong.value.__notes__ == ["tensor 'layer.3.key', method 'int4'"]


def test_one_name_is_one_method():
    assert evaluate(cache(), "int4", token_axis=0) == evaluate(cache(), ["int4"], token_axis=0)


def test_schemes_learn_the_layer_and_the_head_dim():
    seen = []

    class Curious(Scheme):
        name, title = "curious", "remembers what it is told"

        def compress(self, values, context):
            seen.append((context.layer, context.block))
            return {"none": values[:0]}

        def restore(self, parts, context):
            return np.zeros((*context.block[:3], context.block[3] + parts["none"].size), np.float32)

    tensors = {f"layer.{layer}.key": np.ones((9, 8), np.float32) for layer in (0, 7)}
    evaluate(tensors, [Method.of_scheme(Curious())], token_axis=0, head_dim=4)
    evaluate(tensors, [Method.of_scheme(Curious())], token_axis=0, layer_of=len)
    assert seen == [(0, (1, 9, 2, 4)), (7, (1, 9, 2, 4)), (11, (1, 9, 1, 8)), (11, (1, 9, 1, 8))]


def test_methods_without_their_library_are_known(monkeypatch):
    monkeypatch.setattr(baselines.base, "find_spec", {}.get)
    assert {name for name, method in METHODS.items() if not method.available} == {"cachegen", "cachegen-lmcache"}
