"""lynxq.speculative: the rule by hand, its borders, numpy against torch, and what the interface refuses."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lynxq.errors import DistributionError, DTypeError, LynxqError, ParamsError, ShapeError
from lynxq.speculative import (
    Distributions,
    Draft,
    Drafting,
    acceptance_probability,
    corrected_distribution,
    rows,
    verify,
)

BELOW_ONE = 1 - 2.0**-53


def probabilities(rng, count, width, zeros=0.3):
    """Random rows with zeros, ties and very small values."""
    weights = rng.choice([1.0, 2.0, 1e-9, rng.random() + 0.01], (count, width)) * (rng.random((count, width)) > zeros)
    weights[np.arange(count), rng.integers(width, size=count)] = 1.0
    return weights / weights.sum(-1, keepdims=True)


def batch(rng, lengths, width, kind):
    """q and p of a batch of unequal lengths as numpy matrices, and the arguments that make distributions of them."""
    count, requests = sum(lengths), len(lengths)
    q, p = probabilities(rng, count, width), probabilities(rng, count + requests, width)
    if kind == "probabilities":
        return q, p, {}
    with np.errstate(divide="ignore"):
        q, p = (np.log(x).astype(np.float32) * np.float32(1.7) for x in (q, p))
    return q, p, {"temperature": {"logits": 1.7, "greedy": 0.0}[kind]}


def distributions(matrix, arguments):
    if arguments:
        return Distributions.from_logits(matrix, **arguments)
    return Distributions.from_probabilities(matrix)


def by_definition(tokens, q, lengths, p, uniforms):
    """The rule in plain loops."""
    result, row, target = [], 0, 0
    for length in lengths:
        out = []
        for step in range(length):
            x = tokens[row + step]
            ratio = p[target + step, x] / q[row + step, x]
            if uniforms[target + step] < min(1.0, ratio):
                out.append(int(x))
                continue
            weights = np.maximum(0, p[target + step] - q[row + step])
            break
        else:
            weights = p[target + length]
        edges = np.cumsum(weights) / weights.sum()
        out.append(int(np.searchsorted(edges, uniforms[target + length], side="right")))
        result.append(out)
        row, target = row + length, target + length + 1
    return result


@st.composite
def batches(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = draw(st.lists(st.integers(0, 5), max_size=6))
    return rng, lengths, draw(st.integers(1, 9)), draw(st.sampled_from(["probabilities", "logits", "greedy"]))


@given(batches(), st.sampled_from([1, 7, 1 << 22]))
def test_the_rule_as_it_is_defined_and_numpy_equals_torch(case, block):
    rng, lengths, width, kind = case
    q, p, arguments = batch(rng, lengths, width, kind)
    draws, uniforms = rng.random(len(q)), rng.random(len(p))
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK", block)
        for put in (np.asarray, torch.from_numpy):
            drafter, target = distributions(put(q), arguments), distributions(put(p), arguments)
            tokens = drafter.draw(put(draws))
            verified = verify(Draft(tokens, drafter, lengths), target, put(uniforms))
            assert type(verified.tokens) is type(put(q))
            results.append((np.asarray(tokens), verified, np.asarray(drafter.probabilities())))
            exact = np.asarray(target.probabilities())
    (tokens, numpy_result, q64), (torch_tokens, torch_result, q64_torch) = results
    assert np.array_equal(tokens, torch_tokens)
    assert np.array_equal(q64, q64_torch)
    assert np.array_equal(numpy_result.tokens, torch_result.tokens.numpy())
    assert np.array_equal(numpy_result.accepted, torch_result.accepted)
    assert [part.tolist() for part in numpy_result.split()] == by_definition(tokens, q64, lengths, exact, uniforms)
    assert numpy_result.drafted.tolist() == lengths


@given(st.integers(0, 2**32), st.integers(1, 300), st.sampled_from([1.0, 1e-300, 5e-324, 1e300]))
def test_draws_never_take_a_weight_of_zero_and_follow_the_cumulated_weights(seed, width, scale):
    rng = np.random.default_rng(seed)
    weights = probabilities(rng, 4, width, zeros=0.6) * scale
    weights[np.arange(4), rng.integers(width, size=4)] = scale
    for uniforms in (np.zeros(4), np.full(4, BELOW_ONE), rng.random(4)):
        columns = rows.draw(weights, uniforms)
        assert (weights[np.arange(4), columns] > 0).all()
    exact = [[float(w) / scale if scale != 5e-324 else float(w > 0) for w in row] for row in weights]
    edges = np.cumsum(exact, -1)
    expected = (edges <= uniforms[:, None] * edges[:, -1:]).sum(-1)
    near = np.abs(edges / edges[:, -1:] - uniforms[:, None]).min(-1) < 1e-12
    assert ((columns == expected) | near).all()


def test_a_wide_vocabulary_of_float32_logits():
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((3, 150_000)).astype(np.float32) * 8
    made = Distributions.from_logits(logits)
    exact = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    exact /= exact.sum(-1, keepdims=True)
    full = made.probabilities()
    assert np.abs(full.sum(-1) - 1).max() < 1e-12
    np.testing.assert_allclose(full, exact, rtol=1e-12)
    # equal logits, one of them a rounding of float32 lower: the whole draft stays, and the bonus comes from p
    near = logits[:2].copy()
    near[0, 7] = np.nextafter(near[0, 7], np.float32(-np.inf))
    q, p = Distributions.from_logits(logits[:2]), Distributions.from_logits(np.concatenate([near, logits[2:]]))
    tokens = q.draw(rng)
    verified = verify(Draft(tokens, q, [2]), p, np.full(3, 0.999))
    assert verified.accepted.tolist() == [2]
    # the rarest tokens can be drawn and verified: nothing underflows, and the ratio is right
    rare = np.full((1, 150_000), -80.0, np.float32)
    rare[0, 0] = 0
    rare_q, rare_p = rare.copy(), np.repeat(rare, 2, 0)
    rare_p[0, 149_999] = -81.0
    draft = Draft(np.array([149_999]), Distributions.from_logits(rare_q), [1])
    target = Distributions.from_logits(rare_p)
    assert verify(draft, target, np.array([0.367, 0.5])).accepted.tolist() == [1]
    assert verify(draft, target, np.array([0.369, 0.5])).accepted.tolist() == [0]


@given(st.integers(0, 2**32), st.integers(2, 2000))
def test_draws_are_exact_to_a_trillionth(seed, width):
    rng = np.random.default_rng(seed)
    weights = rng.random(width) + 1e-6
    edges = np.cumsum(weights) / weights.sum()
    column = int(rng.integers(width - 1))
    uniforms = edges[column] + np.array([-1e-12, 1e-12])
    assert rows.draw(np.tile(weights, (2, 1)), uniforms).tolist() == [column, column + 1]


def test_probabilities_that_are_a_little_off_are_normalised():
    made = Distributions.from_probabilities(np.array([[0.5, 0.4995], [0.25, 0.75]]))
    np.testing.assert_allclose(made.probabilities(), [[0.5 / 0.9995, 0.4995 / 0.9995], [0.25, 0.75]], rtol=1e-15)
    q = Distributions.from_probabilities(np.array([[0.5, 0.5]]))
    draft, edge = Draft(np.array([1]), q, [1]), 0.4995 / 0.9995 / 0.5
    for nudge, kept in ((-1e-9, 1), (1e-9, 0)):
        assert verify(draft, made, np.array([edge + nudge, 0.5])).accepted.tolist() == [kept]


def test_uniform_150k_is_drawn_evenly():
    made = Distributions.from_logits(np.zeros((1, 150_001), np.float32))
    for token in (0, 1, 75_000, 150_000):
        for inside in (0.01, 0.99):
            assert made.draw(np.array([(token + inside) / 150_001])).tolist() == [token]


def test_equal_distributions_accept_everything_however_small_or_tied():
    tiny = np.array([[1.0, 5e-324, 2.2e-308, 0.0], [0.25, 0.25, 0.25, 0.25]])
    q, p = Distributions.from_probabilities(tiny), Distributions.from_probabilities(np.concatenate([tiny, tiny[:1]]))
    verified = verify(Draft(np.array([1, 3]), q, [2]), p, np.full(3, BELOW_ONE))
    assert verified.accepted.tolist() == [2]


def test_disjoint_supports_reject_at_once():
    q = Distributions.from_probabilities(np.array([[0.5, 0.5, 0.0, 0.0]] * 3))
    p = Distributions.from_probabilities(np.array([[0.0, 0.0, 0.5, 0.5]] * 4))
    verified = verify(Draft(np.array([0, 1, 0]), q, [3]), p, np.array([0.0, 0.0, 0.0, 0.75]))
    assert verified.accepted.tolist() == [0]
    assert verified.tokens.tolist() == [3]


def test_greedy_is_the_exact_match_with_the_first_of_equal_logits():
    logits = np.array([[1.0, 3.0, 3.0], [5.0, 0.0, 5.0], [0.0, 0.0, 1.0]], np.float32)
    target = Distributions.from_logits(logits, temperature=0.0)
    for drafted, expected in (([1, 0], [1, 0, 2]), ([1, 2], [1, 0]), ([2, 0], [1])):
        tokens = np.array(drafted)
        for q in (Distributions.certain(tokens, 3), Distributions.from_logits(np.zeros((2, 3), np.float32))):
            assert verify(Draft(tokens, q, [2]), target, np.array([0.99, 0.99, 0.5])).tokens.tolist() == expected


def test_a_drafter_without_randomness_is_verified_against_a_sampled_target():
    target = Distributions.from_probabilities(np.array([[0.25, 0.75], [1.0, 0.0]]))
    draft = Draft(np.array([0]), Distributions.certain(np.array([0]), 2), [1])
    assert verify(draft, target, np.array([0.24, 0.0])).tokens.tolist() == [0, 0]
    assert verify(draft, target, np.array([0.26, 0.0])).tokens.tolist() == [1]


def test_temperatures_by_row():
    logits = np.log(np.array([[1.0, 4.0], [1.0, 4.0], [1.0, 4.0]]))
    made = Distributions.from_logits(logits, temperature=np.array([1.0, 0.5, 0.0]))
    np.testing.assert_allclose(made.probabilities(), [[1 / 5, 4 / 5], [1 / 17, 16 / 17], [0, 1]])
    extreme = Distributions.from_logits(np.array([[-1e308, 1e308], [0.0, 1.0]]), temperature=5e-324)
    assert extreme.probabilities().tolist() == [[0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_every_float_type_means_its_values(dtype):
    logits = np.random.default_rng(3).standard_normal((4, 33)).astype(dtype)
    expected = Distributions.from_logits(logits.astype(np.float64)).probabilities()
    np.testing.assert_array_equal(Distributions.from_logits(logits).probabilities(), expected)
    name = "bfloat16" if dtype is ml_dtypes.bfloat16 else np.dtype(dtype).name
    tensor = torch.from_numpy(logits.astype(np.float64)).to(getattr(torch, name)).requires_grad_(True)
    np.testing.assert_array_equal(Distributions.from_logits(tensor).probabilities().numpy(), expected)


def test_pure_functions():
    p, q = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]), np.array([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
    assert corrected_distribution(p, q).tolist() == [[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]
    np.testing.assert_allclose(acceptance_probability(p, q), [0.7, 1.0])
    for function in (corrected_distribution, acceptance_probability):
        result = function(torch.from_numpy(p), torch.from_numpy(q))
        np.testing.assert_array_equal(result.numpy(), function(p, q))
        with pytest.raises(ShapeError):
            function(p, q[:1])
        with pytest.raises(DTypeError):
            function(p, torch.from_numpy(q))


def test_generators_are_reproducible():
    q, p = (Distributions.from_logits(np.zeros((n, 50), np.float32)) for n in (6, 8))
    draft = Draft(q.draw(np.random.default_rng(0)), q, [4, 2])
    results = [verify(draft, p, np.random.default_rng(7)).tokens.tolist() for _ in range(2)]
    results.append(verify(draft, p, np.random.default_rng(7).random(8)).tokens.tolist())
    assert results[0] == results[1] == results[2]
    drawn = [verify(draft, p, torch.Generator().manual_seed(3)).tokens.tolist() for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_drafting_packs_steps_by_request():
    rng = np.random.default_rng(2)
    matrices = [probabilities(rng, 3, 5), probabilities(rng, 2, 5), probabilities(rng, 2, 5)]
    owners = [[0, 1, 2], [2, 0], [2, 1]]
    for put in (np.asarray, torch.from_numpy):
        drafting = Drafting(3)
        drawn = [
            drafting.draw(Distributions.from_probabilities(put(m)), np.random.default_rng(1), requests=o).tolist()
            for m, o in zip(matrices, owners, strict=True)
        ]
        draft = drafting.finish()
        assert draft.lengths.tolist() == [2, 2, 3]
        assert draft.tokens.tolist() == [
            drawn[0][0], drawn[1][1], drawn[0][1], drawn[2][1], drawn[0][2], drawn[1][0], drawn[2][0],
        ]  # fmt: skip
        expected = np.stack([matrices[s][r] for s, r in ((0, 0), (1, 1), (0, 1), (2, 1), (0, 2), (1, 0), (2, 0))])
        np.testing.assert_allclose(np.asarray(draft.distributions.probabilities()), expected, rtol=1e-15)
        assert draft.requests == 3


def test_drafting_keeps_temperatures_and_certain_tokens():
    drafting = Drafting(1)
    for heat in (1.0, 0.0):
        drafting.draw(Distributions.from_logits(np.log([[1.0, 3.0]]), temperature=heat), np.array([0.1]))
    np.testing.assert_allclose(drafting.finish().distributions.probabilities(), [[0.25, 0.75], [0, 1]])
    drafting = Drafting(1)
    drafting.draw(Distributions.certain(np.array([4]), 9), np.array([0.1]))
    assert drafting.finish().tokens.tolist() == [4]
    drafting.draw(Distributions.from_logits(np.zeros((1, 9))), np.array([0.1]))
    with pytest.raises(DistributionError):
        drafting.finish()
    with pytest.raises(ShapeError):
        Drafting(2).finish()
    with pytest.raises(ShapeError):
        drafting.draw(Distributions.certain(np.array([4]), 9), np.array([0.1]), requests=[])
    with pytest.raises(ShapeError):
        Drafting(2).draw(Distributions.certain(np.array([4, 4]), 9), np.array([0.1, 0.1]), requests=[1, 1])


def test_empty_batches_and_empty_drafts():
    none = Distributions.from_logits(np.zeros((0, 4), np.float32))
    nothing = verify(Draft(np.zeros(0, np.int64), none, []), none, np.zeros(0))
    assert nothing.tokens.tolist() == []
    assert nothing.split() == []
    target = Distributions.certain(np.array([3, 1]), 4)
    assert verify(Draft(np.zeros(0, np.int64), none, [0, 0]), target, np.zeros(2)).tokens.tolist() == [3, 1]


Q = np.array([[0.5, 0.5, 0.0]])
GOOD = Distributions.from_probabilities(Q)
DRAFT = Draft(np.array([0]), GOOD, [1])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Draft(np.array([2]), GOOD, [1]), DistributionError),
        (lambda: Draft(np.array([0]), Q, [1]), DTypeError),
        (lambda: Draft(np.array([0]), None, [1]), DTypeError),
        (lambda: Draft(torch.tensor([0]), GOOD, [1]), DTypeError),
        (lambda: Draft(np.array([0.0]), GOOD, [1]), DTypeError),
        (lambda: Draft([0], GOOD, [1]), DTypeError),
        (lambda: Draft(np.array([3]), GOOD, [1]), ParamsError),
        (lambda: Draft(np.array([-1]), GOOD, [1]), ParamsError),
        (lambda: Draft(np.array([0, 0]), GOOD, [2]), ShapeError),
        (lambda: Draft(np.array([0]), GOOD, [2]), ShapeError),
        (lambda: Draft(np.array([0]), GOOD, [2, -1]), ShapeError),
        (lambda: Draft(np.array([0]), GOOD, 1), ShapeError),
        (lambda: verify(np.array([0]), GOOD, np.zeros(2)), DTypeError),
        (lambda: verify(DRAFT, np.concatenate([Q, Q]), np.zeros(2)), DTypeError),
        (lambda: verify(DRAFT, GOOD, np.zeros(2)), ShapeError),
        (lambda: verify(DRAFT, Distributions.certain(np.array([0, 0]), 4), np.zeros(2)), ShapeError),
        (lambda: verify(DRAFT, Distributions.certain(torch.tensor([0, 0]), 3), np.zeros(2)), DTypeError),
        (lambda: verify(DRAFT, Distributions.certain(np.array([0, 0]), 3), np.zeros(1)), ShapeError),
        (lambda: verify(DRAFT, Distributions.certain(np.array([0, 0]), 3), np.zeros(2, np.float32)), DTypeError),
        (lambda: verify(DRAFT, Distributions.certain(np.array([0, 0]), 3), np.ones(2)), ParamsError),
        (lambda: verify(DRAFT, Distributions.certain(np.array([0, 0]), 3), np.full(2, np.nan)), ParamsError),
        (lambda: verify(DRAFT, Distributions.certain(np.array([0, 0]), 3), 7), DTypeError),
        (lambda: Distributions.from_probabilities(np.array([[0.5, 0.4]])), DistributionError),
        (lambda: Distributions.from_probabilities(np.array([[1.5, -0.5]])), DistributionError),
        (lambda: Distributions.from_probabilities(np.array([[np.nan, 1.0]])), DistributionError),
        (lambda: Distributions.from_probabilities(np.array([[1, 0]])), DTypeError),
        (lambda: Distributions.from_probabilities(np.array([0.5, 0.5])), ShapeError),
        (lambda: Distributions.from_probabilities(np.zeros((1, 0))), ShapeError),
        (lambda: Distributions.from_logits(np.array([[0.0, np.nan]])), DistributionError),
        (lambda: Distributions.from_logits(np.array([[0.0, np.inf]])), DistributionError),
        (lambda: Distributions.from_logits(np.array([[-np.inf, -np.inf]])), DistributionError),
        (lambda: Distributions.from_logits(np.zeros((1, 2)), temperature=-1.0), ParamsError),
        (lambda: Distributions.from_logits(np.zeros((1, 2)), temperature=np.ones(2)), ShapeError),
        (lambda: Distributions.from_logits(np.zeros((1, 2)), temperature=np.array(["a"])), DTypeError),
        (lambda: Distributions.from_logits(np.zeros((1, 2)), temperature="hot"), DTypeError),
        (lambda: Distributions.certain(np.array([5]), 5), ParamsError),
    ],
)
def test_refusals_are_one_sentence(call, error):
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, LynxqError)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300


def test_there_is_no_draft_without_its_distributions():
    with pytest.raises(TypeError):
        Draft(np.array([0]), lengths=[1])


def test_torch_operations_give_what_numpy_gives(monkeypatch):
    """Tensors off the CPU use torch's operations: run these on the CPU, and compare."""
    rng = np.random.default_rng(11)
    lengths = rng.integers(0, 6, 40).tolist()
    cases = [
        (batch(rng, lengths, 37, kind), rng.random(sum(lengths) + 40)) for kind in ("probabilities", "logits", "greedy")
    ]

    def run(put):
        results = []
        for (q, p, arguments), uniforms in cases:
            drafter = distributions(put(q), arguments)
            tokens = drafter.draw(np.linspace(0, 0.999, len(q)))
            verified = verify(Draft(tokens, drafter, lengths), distributions(put(p), arguments), uniforms)
            results.append((np.asarray(tokens), np.asarray(verified.tokens), np.asarray(drafter.probabilities())))
        return results

    expected = run(np.asarray)
    view = rows.view

    def native(array, what):
        matrix, home = view(array, what)
        return (array, home) if isinstance(array, torch.Tensor) else (matrix, home)

    monkeypatch.setattr(rows, "view", native)
    for mine, theirs in zip(run(torch.from_numpy), expected, strict=True):
        assert np.array_equal(mine[0], theirs[0])
        assert np.array_equal(mine[1], theirs[1])
        np.testing.assert_allclose(mine[2], theirs[2], rtol=1e-14)
