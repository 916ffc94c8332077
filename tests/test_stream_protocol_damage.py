"""Damaged pages in the protocol: asked for again, given up, never handed out."""

import pytest

import lynxq
from lynxq.errors import IncompleteError
from lynxq.stream import (
    Damaged,
    Done,
    EncodedSource,
    Ended,
    Failed,
    ReceiverLimits,
    ResidualPage,
    ResidualReady,
    Retried,
    SenderLimits,
)
from lynxq.stream.messages import Code
from tests.stream_tools import SMALL, Pair, damage, encoded, source, wide


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("at", [-1, 0, 5, 25, 33, 41, 60, 70])
def test_a_damaged_page_is_asked_for_again(kind, at):
    pair = Pair({"p": source()}, limits=SMALL)
    request = pair.ask("p")
    pair.run(damage(1, kind, 3, at))
    assert [(event.page, event.stream) for event in pair.of(Retried)] == [(1, ("anchor", "residual")[kind])] * 3
    pair.check(request, encoded())
    assert pair.events[-1] == Done(request, 0)


def test_a_residual_page_that_stays_damaged_is_given_up():
    pair = Pair({"p": source()}, limits=SMALL)
    request = pair.ask("p")
    pair.run(damage(1, 1, 99))
    (event,) = pair.of(Damaged)
    assert (event.stream, event.name, event.page) == ("residual", "k", 1)
    assert len(pair.of(Retried)) == 3
    assert pair.events[-1] == Done(request, 1)
    received = pair.received[request]
    assert received.tier("k") == "anchor"
    assert {each.name for each in pair.of(ResidualReady)} == {"v", "empty"}
    with pytest.raises(IncompleteError, match="residual page 1"):
        received.decode("k")
    assert received.encoded("k", pages=(2, 4)).layout.pages == 2


def test_an_anchor_page_that_stays_damaged_takes_its_residual_along():
    pair = Pair({"p": source()}, limits=SMALL)
    request = pair.ask("p")
    pair.run(damage(2, 0, 99))
    assert [(event.stream, event.page) for event in pair.of(Damaged)] == [("anchor", 2), ("residual", 2)]
    assert not [event for event in pair.of(ResidualPage) if (event.name, event.page) == ("k", 2)]
    assert pair.events[-1] == Done(request, 2)
    assert pair.received[request].tier("k") is None


def test_pages_are_not_asked_for_again_without_end():
    """Also if the receiver would: the sender says that it will not come."""
    limits = ReceiverLimits(retries=100)
    pair = Pair({"p": source()}, limits=limits, sender_limits=SenderLimits(max_again=5))
    request = pair.ask("p")
    pair.run(damage(1, 0, 999))
    assert len(pair.of(Retried)) == 6
    assert pair.events[-1] == Done(request, 2)


def test_a_residual_of_another_anchor_is_never_handed_out():
    """The frame is sound, and names an anchor page of a cache with an equal description."""
    ours, other = {"k": wide(50, 0)}, {"k": wide(50, 9)}

    class Mixed(EncodedSource):
        def frame(self, which, tensor, page):
            return (mixed if which == "residual" and page == 1 else super()).frame(which, tensor, page)

    mixed = EncodedSource(other)
    pair = Pair({"p": Mixed(ours)})
    pair.ask("p")
    pair.run()
    (event,) = pair.of(Damaged)
    assert (event.stream, event.page) == ("residual", 1)
    assert type(event.error).__name__ == "ResidualMismatchError"


def test_a_page_that_is_damaged_where_it_is_kept():
    class Rotten(EncodedSource):
        def frame(self, which, tensor, page):
            if (which, tensor, page) == ("residual", 0, 2):
                raise lynxq.errors.ResidualChecksumError("rotten")
            return super().frame(which, tensor, page)

    pair = Pair({"p": Rotten(encoded())})
    request = pair.ask("p")
    pair.run()
    (event,) = pair.of(Damaged)
    assert (event.stream, event.page) == ("residual", 2)
    assert not pair.of(Retried)
    assert pair.events[-1] == Done(request, 1)


def test_a_source_that_fails_ends_its_request_only():
    class Failing(EncodedSource):
        def frame(self, which, tensor, page):
            if which == "residual":
                raise OSError("disk on fire")
            return super().frame(which, tensor, page)

    pair = Pair({"bad": Failing(encoded()), "good": source()})
    bad, good = pair.ask("bad"), pair.ask("good")
    pair.run()
    (failed,) = pair.of(Failed)
    assert (failed.request, failed.code, failed.reason) == (bad, Code.FAILED, "disk on fire")
    assert Ended(bad, Code.FAILED, "disk on fire") in pair.sender_events
    pair.check(good, encoded())
    assert pair.received[bad].tier("k") == "anchor"
