"""The two state machines against each other: whole transfers, tiers, and names."""

from dataclasses import replace

import pytest

import lynxq
from lynxq import stream, testing
from lynxq.errors import IncompleteError, ParamsError
from lynxq.stream import (
    AnchorReady,
    Delivered,
    Done,
    EncodedSource,
    Failed,
    RequestOpened,
    ResidualPage,
    ResidualReady,
    TensorOpened,
)
from lynxq.stream.messages import Code
from lynxq.stream.records import Type
from tests.stream_tools import KEYS, SMALL, WIDE, Pair, coded, encoded, records, source, wide


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("limits", [None, SMALL])
def test_a_transfer(lanes, limits):
    pair = Pair({"p": source()}, lanes=lanes, limits=limits)
    request = pair.ask("p")
    pair.run()
    pair.check(request, encoded())
    first = pair.events[0]
    assert isinstance(first, RequestOpened)
    assert first.header.metadata == {"model": "toy"}
    assert [event.name for event in pair.of(TensorOpened)] == ["k", "v", "empty"]
    assert {event.name for event in pair.of(AnchorReady)} == {"k", "v", "empty"}
    assert {event.name for event in pair.of(ResidualReady)} == {"k", "v", "empty"}
    assert pair.events[-1] == Done(request, 0)
    assert pair.sender_events[-1] == Delivered(request)
    assert pair.receiver.data_to_send() == b""
    assert pair.from_sender() == b""


def test_frames_are_those_of_the_container():
    """A transmission without its records is the container behind its header."""
    tensors = encoded()
    pair = Pair({"p": EncodedSource(tensors)})
    pair.ask("p")
    pair.to_sender()
    found = records(pair.from_sender(1 << 30))
    sent = b"".join(bytes(record.body) for record in found if record.type in (Type.OPEN, Type.DATA))
    pair.receiver.receive(b"".join(record.pack() for record in found))
    pair.to_sender()
    sent += b"".join(bytes(r.body) for r in records(pair.from_sender(1 << 30)) if r.type == Type.DATA)
    import io

    file = io.BytesIO()
    lynxq.save(file, tensors)
    assert sent == file.getvalue()


def test_anchors_alone():
    pair = Pair({"p": source()})
    request = pair.ask("p", "anchor")
    pair.run()
    pair.check(request, encoded(), "anchor")
    assert not pair.of(ResidualPage)
    assert pair.events[-1] == Done(request, 0)
    with pytest.raises(IncompleteError):
        pair.received[request].encoded("k")


def test_a_source_without_residuals():
    tensors = {"k": wide().anchor_only()}
    pair = Pair({"p": EncodedSource(tensors)})
    request = pair.ask("p")
    pair.run()
    assert pair.received[request].streams == ("anchor",)
    assert pair.received[request].tier("k") == "anchor"
    pair.check(request, tensors, "anchor")


@pytest.mark.parametrize("bits", [(3, 2), (3, 5), (4, 3), (5, 3), (6, 2)])
@pytest.mark.parametrize("tokens", [1, 50])
def test_codes_of_any_width(bits, tokens):
    params = replace(WIDE, anchor_bits=bits[0], residual_bits=bits[1])
    x = testing.contents("normal", (tokens, 40), "float32", 0)
    tensors = {"k": lynxq.encode(x, params, token_axis=0)}
    pair = Pair({"p": EncodedSource(tensors)}, limits=SMALL)
    request = pair.ask("p")
    pair.run()
    pair.check(request, tensors)


def test_a_request_without_pages_is_done_at_once():
    pair = Pair({"p": EncodedSource({"empty": coded(0)}), "nothing": EncodedSource({})})
    requests = [pair.ask("p"), pair.ask("nothing")]
    pair.run()
    assert [event.request for event in pair.of(Done)] == requests
    assert pair.received[requests[0]].tier("empty") == "full"


def test_only_valid_tokens_are_sent():
    x = lynxq.testing.contents("normal", (30, 4), "float32")
    padded = lynxq.encode(x, KEYS, token_axis=0, valid_tokens=20)
    pair = Pair({"p": EncodedSource({"k": padded})})
    request = pair.ask("p")
    pair.run()
    pair.check(request, {"k": lynxq.encode(x[:20], KEYS, token_axis=0)})


def test_an_unknown_name():
    pair = Pair({})
    request = pair.ask("no such thing")
    pair.run()
    assert pair.events == [Failed(request, Code.UNKNOWN, "unknown")]


@pytest.mark.parametrize("name", ["", "x" * 1025, "é" * 513, "\ud800", 7, None])
def test_names_that_cannot_be_asked_for(name):
    with pytest.raises(ParamsError):
        stream.Receiver().request(name)


def test_names_at_the_limit():
    pair = Pair({"é" * 512: source()})
    pair.ask("é" * 512)
    pair.run()
    assert pair.of(Done)
