"""lynxq.calibrate: what the search foresees is what the codec does, budgets hold, and the result is plain data."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import as_file, files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import Params, evaluate, naming, synthetic
from lynxq.calibration import Calibration, Entry, allocation, candidates, data, histogram, measure, sampling, search
from lynxq.calibration.sensitivity import costs, heads, load_layers
from lynxq.errors import NonFiniteError, ParamsError, ShapeError
from lynxq.metrics import ErrorSums, attention_output_error
from lynxq.tensorfile import open_tensors


@pytest.fixture(scope="module")
def cache():
    """A real cache of two layers, 640 tokens."""
    with as_file(files("lynxq") / "data" / "smollm2_excerpt.safetensors") as path, open_tensors(path) as file:
        return {name: x for name, x in file.items() if naming.kind_of(name)}


@pytest.fixture(scope="module")
def queries(cache):
    """Made up, as large as keys, three heads for each head of keys."""
    rng = np.random.default_rng(1)
    names = [name for name in cache if naming.kind_of(name) == "key"]
    shapes = {naming.layer_of(name): cache[name].shape for name in names}
    return {
        f"layer.{layer}.query": rng.standard_normal((tokens, 3 * count, dim)).astype(np.float32) * 2
        for layer, (tokens, count, dim) in shapes.items()
    }


def loaded(tensors, **options):
    return data.load(tensors, naming.kind_of, naming.layer_of, token_axis=0, head_dim=None, **options)


def true_bits(tensors, params, **options):
    encoded = [lynxq.encode(x, params(name), **options).anchor_only() for name, x in tensors.items()]
    return 8 * sum(e.nbytes for e in encoded) / sum(e.layout.elements for e in encoded)


# --- what the search foresees ----------------------------------------------------------------------


def test_the_histogram_foresees_the_error_of_the_codec(cache):
    """For every grouping that is tried, with points of its own and with those of the presets."""
    tensors = loaded({"layer.0.key": next(iter(cache.values()))[:, :1].astype(np.float32)})
    samples = sampling.centred_samples(tensors, size=512, wanted=1 << 20)
    found = []
    for grouping in candidates.groupings(("token", "channel"), 256, 64, 4):
        bins = histogram.Histogram.of(grouping, samples)
        for split, alpha in zip(candidates.splits(grouping, 8), (0.0, 0.5, 4.0, 64.0), strict=True):
            params = replace(split, alpha=alpha)
            points = histogram.anchor_errors(bins, params, np.array([alpha]))[1][0]
            for tried in (params, replace(params, anchor_points=tuple(points.tolist()))):
                expected = histogram.anchor_error(bins, tried)
                found.append(expected / measure.centred_error(tensors, lambda _, tried=tried: tried))
    assert len(found) > 100
    assert 0.98 < min(found) <= max(found) < 1.02


def test_fitted_points_are_the_best_ones(cache):
    samples = sampling.centred_samples(loaded(cache), size=512, wanted=1 << 20)
    params = Params.keys()
    bins = histogram.Histogram.of(params, samples)
    (least,), (points,) = histogram.anchor_errors(bins, params, np.array([params.alpha]))
    assert points[-1] == 1.0
    assert least == pytest.approx(histogram.anchor_error(bins, replace(params, anchor_points=tuple(points.tolist()))))
    for number, shift in itertools.product(range(len(points) - 1), (-0.01, 0.01)):
        moved = points.copy()
        moved[number] += shift
        other = replace(params, anchor_points=tuple(np.sort(np.abs(moved)).tolist()))
        assert histogram.anchor_error(bins, other) > least


def test_costs_foresee_the_error_of_attention_outputs(cache, queries):
    """Small independent errors in all keys or all values, on the queries that the costs were made from."""
    rng = np.random.default_rng(3)
    for layer in load_layers(loaded(cache), queries, naming.layer_of):
        k, v = heads(layer.keys), heads(layer.values)
        for number, (tensor, cost) in enumerate(zip((layer.keys, layer.values), costs(layer), strict=True)):
            noise = (rng.standard_normal(tensor.values.shape) * 0.02).astype(np.float32)
            near = [k, v]
            near[number] = heads(replace(tensor, values=tensor.values + noise))
            errors = [
                attention_output_error(block.rows, k, v, *near, first_query=block.first) for block in layer.queries
            ]
            measured = sum(errors[1:], errors[0]).pooled
            assert float((cost.astype(np.float64) * np.square(noise, dtype=np.float64)).sum()) == pytest.approx(
                measured, rel=0.1
            )


def test_costs_have_the_axes_of_the_tensors():
    """Outer axes and heads are mixed up nowhere: a layer in another layout has the same costs."""
    rng = np.random.default_rng(0)
    k, v, q = (rng.standard_normal((40, count, 8)).astype(np.float32) for count in (2, 2, 4))
    plain = load_layers(loaded({"0.k": k, "0.v": v}), {"0.q": q}, naming.layer_of)[0]
    moved = data.load(
        {"0.k": k.transpose(1, 0, 2), "0.v": v.transpose(1, 0, 2)},
        naming.kind_of, naming.layer_of, token_axis=1, head_dim=None,
    )  # fmt: skip
    turned = load_layers(moved, {"0.q": q.transpose(1, 0, 2)}, naming.layer_of)[0]
    for a, b in zip(costs(plain), costs(turned), strict=True):
        assert np.array_equal(a.reshape(40, 2, 8), b.transpose(1, 0, 2))


def test_samples_leave_sinks_out_and_keep_whole_pages():
    x = np.arange(1000, dtype=np.float32)[:, None, None] * np.ones((1, 1, 2), np.float32)
    (tensor,) = loaded({"k": x})
    (sample,) = sampling.centred_samples([tensor], size=256, wanted=512)
    for axis in ("token", "channel"):
        pages = [page[0, :, 0].tolist() for page, _ in sample.pages(Params(axis=axis, page=128, range_size=128))]
        assert [page[0] for page in pages] == [4, 128, 768, 896]
        assert [len(page) for page in pages] == [124, 128, 128, 104]


# --- sharing of bits -------------------------------------------------------------------------------

OPTIONS = st.lists(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 100)), min_size=1, max_size=5), min_size=1, max_size=4
)


@given(OPTIONS, st.integers(1, 100))
def test_allocation_is_the_best_of_all_combinations(options, budget):
    fitting = [
        pick
        for pick in itertools.product(*(range(len(group)) for group in options))
        if sum(options[g][i][0] for g, i in enumerate(pick)) <= budget
    ]
    found = allocation.allocate(options, budget)
    if not fitting:
        assert found is None
        return
    assert tuple(found) in fitting

    def error(pick):
        return sum(options[g][i][1] for g, i in enumerate(pick))

    assert error(found) == min(map(error, fitting))


def test_allocation_with_more_combinations_than_are_kept():
    rng = np.random.default_rng(0)
    options = [[(4 + i / 7 + rng.random() / 99, rng.random() * 4.0**-i) for i in range(30)] for _ in range(40)]
    picks = allocation.allocate(options, 40 * 5.0)
    bits, errors = (sum(options[g][i][part] for g, i in enumerate(picks)) for part in (0, 1))
    assert 199 < bits <= 200
    # No better than the bound of Lagrange, and close to it.
    bound = max(
        sum(min(error + weight * b for b, error in group) for group in options) - weight * 200
        for weight in np.geomspace(1e-9, 10, 2000)
    )
    assert bound <= errors < 1.02 * bound


# --- calibrate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["kind", "layer"])
@pytest.mark.parametrize("budget", [None, 3.7, 4.65, 6.2])
def test_budgets_hold_in_real_bytes_and_errors_fall(cache, per, budget):
    found = lynxq.calibrate(cache, None, budget, token_axis=0, per=per)
    bits = true_bits(cache, found.__getitem__, token_axis=0)
    assert bits == pytest.approx(found.bits_per_element, rel=1e-12)
    assert bits <= found.budget_bits * (1 + 1e-12)
    assert found.preset_bits == pytest.approx(
        true_bits(cache, lambda name: naming.preset_for(naming.kind_of(name)), token_axis=0), rel=1e-12
    )
    if budget is None:
        assert found.budget_bits == found.preset_bits
    if budget != 3.7:
        assert found.error < found.preset_error
    errors = [
        ErrorSums.of(x, lynxq.decode_anchor(lynxq.encode(x, found[name], token_axis=0)), token_axis=0).centred_vnmse
        for name, x in cache.items()
    ]
    assert np.mean(errors) == pytest.approx(found.error, rel=1e-9)


def test_more_bits_less_error(cache):
    errors = [lynxq.calibrate(cache, None, budget, token_axis=0).error for budget in (3.6, 4.2, 4.5, 5.0, 6.0)]
    assert errors == sorted(errors, reverse=True)


def test_layers_of_their_own_are_not_worse(cache):
    by_kind, by_layer = (lynxq.calibrate(cache, None, 4.6, token_axis=0, per=per) for per in ("kind", "layer"))
    assert by_layer.error <= by_kind.error
    kinds = [(entry.kind, entry.layer) for entry in by_kind.entries]
    assert kinds == [("key", None), ("value", None)]
    layers = sorted({naming.layer_of(name) for name in cache})
    assert [(entry.kind, entry.layer) for entry in by_layer.entries] == [
        *(("key", layer) for layer in (None, *layers)),
        *(("value", layer) for layer in (None, *layers)),
    ]
    assert by_layer["layer.99.value"] == by_layer.params("value")


def test_queries_change_what_is_minimised(cache, queries):
    found = lynxq.calibrate(cache, queries, 4.65, token_axis=0)
    assert found.objective == "attention"
    assert found.error < found.preset_error
    assert true_bits(cache, found.__getitem__, token_axis=0) <= 4.65
    part = {
        name: x[-100:] for name, x in queries.items() if naming.layer_of(name) == naming.layer_of(next(iter(cache)))
    }
    some = lynxq.calibrate(cache, part, 4.65, token_axis=0, per="layer")
    assert [entry.layer for entry in some.entries if entry.kind == "key"] == [None, naming.layer_of(next(iter(cache)))]
    assert all(some[name] for name in cache)


def test_what_queries_weigh_gets_the_bits(cache, queries):
    """Without any attention for keys, the bits go to values."""
    still = {name: np.zeros_like(x) for name, x in queries.items()}
    found = {entry.kind: entry for entry in lynxq.calibrate(cache, still, 4.8, token_axis=0).entries}
    assert found["key"].params.anchor_bits == 3
    assert found["value"].bits_per_element > 5.5


@pytest.mark.parametrize("code_bits", [6, 7])
def test_shorter_codes_are_those_of_all_tensors(cache, code_bits):
    found = lynxq.calibrate(cache, token_axis=0, code_bits=code_bits)
    assert {entry.params.anchor_bits + entry.params.residual_bits for entry in found.entries} == {code_bits}
    assert found.bits_per_element <= found.preset_bits
    least = lynxq.calibrate(cache, budget_bits=found.preset_bits * 1.01, token_axis=0, code_bits=code_bits)
    assert {entry.params.anchor_bits + entry.params.residual_bits for entry in least.entries} == {code_bits}


@pytest.mark.parametrize("code_bits", [5, 9, 7.0, "7", None])
def test_code_bits_are_checked(cache, code_bits):
    with pytest.raises(ParamsError, match=r"code_bits must be"):
        lynxq.calibrate(cache, token_axis=0, code_bits=code_bits)


def test_the_same_input_gives_the_same_bytes(cache, queries):
    first, second = (lynxq.calibrate(list(cache.items()), queries, token_axis=0).to_json() for _ in range(2))
    assert first == second


def test_pages_and_sinks_are_those_asked_for(cache):
    found = lynxq.calibrate(cache, token_axis=0, pages=(64, 128), sink_tokens=1)
    (page,) = {entry.params.page for entry in found.entries}
    assert page in (64, 128)
    assert {entry.params.sink_tokens for entry in found.entries} == {1}


@pytest.mark.parametrize("page", [8, 24, 1024])
def test_any_page_has_groupings(cache, page):
    tried = list(candidates.groupings(("token", "channel"), page, 80, 0))
    assert len(set(tried)) == len(tried)
    assert {params.axis for params in tried if params.page == page} == {"token", "channel"}
    found = lynxq.calibrate(cache, token_axis=0, pages=(page,))
    assert {entry.params.page for entry in found.entries} == {page}


def test_outlier_tokens_need_finer_metadata():
    """A token 1000 times as large as the others: 8 bits relative to its range say nothing of them."""
    made = synthetic.cache(1024, 2, 64, pathologies=("outliers",), seed=1)
    found = lynxq.calibrate(made, None, 5.2, token_axis=0)
    assert found.error < 0.5 * found.preset_error


def test_presets_stay_where_nothing_is_better():
    """Constant tensors have no error with anything."""
    flat = {"k": np.ones((300, 2, 64), np.float32), "v": np.ones((300, 2, 64), np.float32)}
    found = lynxq.calibrate(flat, token_axis=0)
    assert found["k"] == Params.keys()
    assert found["v"] == Params.values()


def test_other_tensors_and_layouts():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 300, 6 * 16)).astype(np.float16)
    found = lynxq.calibrate({"latent": x}, token_axis=1, head_dim=16)
    assert [entry.kind for entry in found.entries] == ["other"]
    assert true_bits({"latent": x}, found.__getitem__, token_axis=1, head_dim=16) <= found.preset_bits


def test_torch_tensors_are_numpy_arrays(cache):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for name, x in cache.items()}
    assert lynxq.calibrate(tensors, token_axis=0) == lynxq.calibrate(cache, token_axis=0)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"budget_bits": 2.9}, ParamsError, "smallest parameters, .* bits for these tensors, got 2.9"),
        ({"budget_bits": 0}, ParamsError, "budget_bits must be above 0, got 0"),
        ({"per": "head"}, ParamsError, "per must be one of"),
        ({"pages": ()}, ParamsError, "pages must have a size"),
        ({"pages": (12,)}, ParamsError, "multiple of 8"),
        ({"sample_tokens": 0}, ParamsError, "sample_tokens must be an integer"),
        ({"tensors": {}}, ParamsError, "tensors must hold a tensor"),
        ({"tensors": {"k": np.zeros((0, 2), np.float32)}}, ShapeError, "must have values"),
        ({"tensors": {"k": np.array([[1.0, np.nan]], np.float32)}}, NonFiniteError, r"\(0, 1\)"),
        ({"queries": {}}, ParamsError, "queries must hold a tensor"),
        ({"queries": {"layer.77.query": np.zeros((4, 3, 64))}}, ParamsError, "layer.77.query"),
        ({"queries": {"layer.0.query": np.zeros((4, 64))}}, ShapeError, "as many axes"),
        ({"queries": {"layer.0.query": np.zeros((4, 4, 64))}}, ShapeError, "must fit keys"),
        ({"queries": {"layer.0.query": np.zeros((9999, 3, 64))}}, ShapeError, "must fit keys"),
    ],
)
def test_errors(cache, change, error, words):
    tensors = {f"layer.0.{naming.kind_of(name)}": x for name, x in cache.items()}
    arguments = {"tensors": tensors, "token_axis": 0, **change}
    with pytest.raises(error, match=words):
        lynxq.calibrate(**arguments)


def test_errors_name_the_tensor(cache):
    with pytest.raises(NonFiniteError) as caught:
        lynxq.calibrate({**cache, "bad": np.array([[np.inf]], np.float32)}, token_axis=0)
    assert caught.value.__notes__ == ["tensor 'bad'"]
    with pytest.raises(ParamsError, match="got 'bad'"):
        lynxq.calibrate(
            {name: np.ones((9, 1, 4), np.float32) for name in ("0.k", "0.v", "bad")},
            {"0.q": np.ones((9, 1, 4))},
            token_axis=0,
        )


# --- the result ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(cache):
    return lynxq.calibrate(cache, None, 4.65, token_axis=0, per="layer")


def test_json_round_trip_and_form(found):
    text = found.to_json()
    assert Calibration.from_json(text) == found
    assert Calibration.from_json(text).to_json() == text
    assert json.loads(text)["entries"][0]["params"] == found.entries[0].params.to_dict()
    infinite = replace(found, preset_error=float("inf"))
    assert Calibration.from_json(infinite.to_json()) == infinite


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("format"), "with the format"),
        (lambda d: d.update(version=2), "version of a calibration must be 1, got 2"),
        (lambda d: d.pop("error"), "lacks the field 'error'"),
        (lambda d: d.update(extra=1), "unknown field 'extra'"),
        (lambda d: d.update(entries=[]), "must have an entry"),
        (lambda d: d.update(entries={}), "must be a list"),
        (lambda d: d["entries"].append(d["entries"][0]), "one entry for key tensors, got several"),
        (lambda d: d["entries"][0].pop("params"), "lacks the field 'params'"),
        (lambda d: d["entries"][0].update(kind="query"), "kind must be one of"),
        (lambda d: d["entries"][0].update(layer=-1), "layer must be an integer"),
        (lambda d: d["entries"][0]["params"].update(chunk=7), "chunk must divide"),
        (lambda d: d["entries"].append(3), "must be a JSON object, got 3"),
        (lambda d: d.update(bits_per_element="4"), "bits_per_element must be a"),
    ],
)
def test_json_that_is_none(found, change, words):
    content = json.loads(found.to_json())
    change(content)
    with pytest.raises(ParamsError, match=words):
        Calibration.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"format": "other"}', "[" * 100_000])
def test_other_text_is_refused(text):
    with pytest.raises(ParamsError):
        Calibration.from_json(text)


def test_lookup(found):
    entry = found.entries[1]
    assert found.params(entry.kind, entry.layer) == entry.params
    with pytest.raises(ParamsError, match="no parameters for other tensors of layer 3"):
        found.params(None, 3)


def test_method_measures_what_the_calibration_says(cache, found):
    rows = evaluate.evaluate(cache, ["pair", found.method()], token_axis=0)
    anchors = {(row.method, row.kind): row for row in rows if row.tier == "anchor"}
    mine = [anchors["calibrated", kind] for kind in ("key", "value")]
    assert sum(row.nbytes for row in mine) * 8 / sum(row.elements for row in mine) == pytest.approx(
        found.bits_per_element
    )
    assert all(
        row.centred_vnmse != anchors["pair", row.kind].centred_vnmse for row in mine
    )  # layers have parameters of their own
    assert found.method() == found.method()
    assert hash(found.method()) == hash(found.method())


def test_the_presets_are_among_the_options(cache):
    (tensor,) = loaded({"layer.0.key": next(iter(cache.values()))})
    samples = sampling.centred_samples([tensor], size=512, wanted=1024)
    fixed = search.Fixed(page=256, sink_tokens=4, code_bits=8)
    offered = search.options(samples, ("token",), fixed)
    start = search.preset(tensor, fixed)
    assert start == Params.keys()
    error = histogram.anchor_error(histogram.Histogram.of(start, samples), start)
    assert any(option.nbytes <= tensor.nbytes(start) and option.error <= error for option in offered)


def test_entries_are_checked():
    entry = Entry(kind="key", layer=None, params=Params(), bits_per_element=4.6)
    whole = {"objective": "attention", "budget_bits": 5.0, "bits_per_element": 4.6}
    whole |= {"error": 0.1, "preset_bits": 4.6, "preset_error": 0.2}
    assert Calibration(entries=[entry], **whole).entries == (entry,)
    for change in ({"entries": (entry, entry)}, {"objective": "kl"}, {"error": -1.0}, {"entries": ("x",)}):
        with pytest.raises(ParamsError):
            Calibration(**{"entries": (entry,), **whole, **change})


def test_import_is_lazy():
    code = (
        "import sys, lynxq; before = 'lynxq.calibration' in sys.modules; function = lynxq.calibrate; "
        "print(before, lynxq.calibration.calibrate is function)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False True\n"
