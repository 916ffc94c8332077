"""Lookup: what is proposed is a piece of the reference, and the right one."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynxq.errors import DTypeError, ParamsError
from lynxq.speculative import Lookup

TOKENS = st.integers(0, 3)
TEXT = st.lists(TOKENS, max_size=30)
PARTS = st.lists(st.lists(TOKENS, max_size=4), max_size=20)


def agreeing(reference, text, place):
    """Length of the longest n-gram before a place of the reference that the text ends with."""
    longest = min(place, len(text))
    return max(n for n in range(longest + 1) if reference[place - n : place] == text[len(text) - n :])


@given(TEXT, PARTS, st.integers(0, 12), st.integers(-1, 12))
def test_proposals_are_short_pieces_of_the_reference_and_the_same_each_time(reference, parts, most, limit):
    lookups = [Lookup(reference, most=most, least=1), Lookup(iter(reference), most=most, least=1)]
    for part in parts:
        proposals = []
        for lookup in lookups:
            lookup.extend(part)
            proposals.append(lookup.propose(limit))
        proposal = proposals[0]
        assert proposals == [proposal, proposal]
        assert lookups[0].propose(limit) == proposal
        assert len(proposal) <= max(0, min(most, limit))
        assert any(reference[i : i + len(proposal)] == proposal for i in range(len(reference) + 1))


@given(TEXT, PARTS, st.integers(1, 3))
def test_the_place_is_that_of_the_longest_ngram_and_nearest_to_step(reference, parts, least):
    lookup, text, in_step, wrong, proposal = Lookup(reference, most=64, least=least), [], 0, 0, []
    for part in parts:
        if proposal and part:
            wrong = 0 if part[0] == proposal[0] else wrong + 1
        lookup.extend(part)
        text += part
        in_step += len(part)
        proposal = lookup.propose(64)
        lengths = [agreeing(reference, text, place) for place in range(len(reference))]
        longest = max(lengths, default=0)
        if longest < least + wrong:
            assert not proposal
            continue
        nearest = min((p for p in range(len(reference)) if lengths[p] == longest), key=lambda p: abs(p - in_step))
        assert proposal == reference[nearest : nearest + 4 * longest]
        in_step = nearest


@given(TEXT, TEXT)
def test_tokens_make_no_difference_by_how_they_are_handed_over(reference, text):
    together, single = Lookup(reference, least=1), Lookup(reference, least=1)
    together.extend(text)
    for token in text:
        single.extend([token])
    assert together.propose(8) == single.propose(8)


@given(st.lists(st.integers(), max_size=8), st.lists(st.integers(), max_size=8))
def test_any_integers_are_tokens(reference, text):
    lookup = Lookup(reference)
    lookup.extend(text)
    lookup.extend([])
    assert len(lookup.propose(1)) <= 1


def test_a_replaced_an_inserted_and_a_missing_token():
    reference = list(range(10, 40))
    for edited in ([99, *reference[1:]], [98, 99, *reference], reference[3:]):
        lookup, done, passes = Lookup(reference), 0, 0
        while done < len(edited):
            proposal = lookup.propose(len(edited) - done - 1)
            kept = 0
            while kept < len(proposal) and proposal[kept] == edited[done + kept]:
                kept += 1
            assert kept == len(proposal)  # distinct tokens: a place that agrees is the right one
            lookup.extend(edited[done : done + kept + 1])
            done += kept + 1
            passes += 1
        assert passes <= 7  # 1 for each new token and the three that agree, then 13 and 16 or so at once


def test_a_text_of_its_own_is_soon_left_alone():
    lookup, proposed = Lookup([1, 2, 3, 1, 2, 3], least=1), 0
    for _ in range(1000):
        proposed += len(lookup.propose(64))
        lookup.extend([1])  # agrees with what is before a 2, but no 2 follows
    assert proposed == 4


def test_one_right_token_makes_up_for_wrong_ones():
    lookup = Lookup([1, 2, 3, 4, 5], least=1)
    lookup.extend([1])
    assert lookup.propose(2) == [2, 3]
    lookup.extend([1])
    assert lookup.propose(8) == []
    lookup.extend([2])  # two tokens agree: enough evidence, even now
    assert lookup.propose(8) == [3, 4, 5]
    lookup.extend([3, 1])
    assert lookup.propose(2) == [2, 3]


def test_by_default_three_tokens_must_agree():
    lookup = Lookup(range(10, 30))
    for token, proposed in ((10, 0), (11, 0), (12, 12), (99, 0)):
        lookup.extend([token])
        assert len(lookup.propose(64)) == proposed


def test_nothing_is_proposed_from_nothing():
    lookup = Lookup([], least=1)
    lookup.extend([1, 2, 3])
    assert lookup.propose(64) == []
    lookup = Lookup([1, 2], least=1)
    assert lookup.propose(64) == []  # no text yet
    lookup.extend([1])
    assert lookup.propose(0) == []
    assert lookup.propose(1) == [2]
    lookup.extend([2])  # the end of the reference
    assert lookup.propose(64) == []


@pytest.mark.parametrize("wrong", [{"most": -1}, {"most": 1.5}, {"least": 0}, {"least": None}])
def test_limits_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ParamsError, match=next(iter(wrong))):
        Lookup([1], **wrong)


def test_tokens_of_other_integer_types_are_proposed_as_plain_integers():
    lookup = Lookup(np.arange(10), least=1)
    lookup.extend(np.array([3], np.uint16))
    assert json.dumps(lookup.propose(np.int64(1))) == "[4]"


@pytest.mark.parametrize("wrong", [5, None, "12", [1.0], [None], ["1"], [[1]], np.zeros((2, 2), int), np.array(1)])
def test_what_is_no_token_is_refused_and_changes_nothing(wrong):
    with pytest.raises(DTypeError, match="reference"):
        Lookup(wrong)
    lookup = Lookup([1, 2, 3], least=1)
    lookup.extend([1])
    assert lookup.propose(8) == [2, 3]
    with pytest.raises(DTypeError, match="text"):
        lookup.extend(wrong)
    assert lookup.propose(8) == [2, 3]


@pytest.mark.parametrize("limit", [1.5, None, "1", True])
def test_a_limit_is_an_integer(limit):
    for lookup in (Lookup([]), Lookup([1])):
        with pytest.raises(ParamsError, match="limit"):
            lookup.propose(limit)
