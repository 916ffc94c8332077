"""The two state machines against each other: order, shares, credit, damage, cancellation, resumption."""

import struct

import pytest

import lynxq
from lynxq import stream
from lynxq.errors import IncompleteError, ParamsError, PeerError, ProtocolError
from lynxq.format.frames import FrameHeader
from lynxq.stream import (
    AnchorPage,
    AnchorReady,
    Cancelled,
    Closed,
    Damaged,
    Delivered,
    Done,
    EncodedSource,
    Ended,
    Failed,
    ReceiverLimits,
    RequestOpened,
    ResidualPage,
    ResidualReady,
    Retried,
    SenderLimits,
    TensorOpened,
)
from lynxq.stream.messages import Code, Hello, Role, reason_record
from lynxq.stream.records import HEADER_SIZE, Record, Type
from tests.stream_tools import KEYS, Pair, coded, data_kinds, encoded, forwards, records, sent_sizes, wide

SMALL = ReceiverLimits(max_data=256)


def source(seed=0):
    return EncodedSource(encoded(seed), metadata={"model": "toy"})


# --- the whole ---------------------------------------------------------------------------------------


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


# --- priority ----------------------------------------------------------------------------------------


def test_no_residual_byte_leaves_while_an_anchor_can():
    """Across tensors and requests, also when a request comes while residuals are on their way."""
    pair = Pair({"a": source(1), "b": source(2)}, limits=SMALL)
    pair.ask("a")
    pair.to_sender()
    sent = pair.from_sender(1 << 20)
    assert set(data_kinds(sent)) == {0}  # residuals wait until the header was accepted
    pair.receiver.receive(sent)
    pair.to_sender()
    some = pair.from_sender(2000)
    assert data_kinds(some) == [1] * len(data_kinds(some))
    pair.receiver.receive(some)
    pair.ask("b")
    pair.to_sender()
    rest = pair.from_sender(1 << 20)
    kinds = data_kinds(rest)
    assert kinds == sorted(kinds)
    assert kinds.count(0) * 2 > 10
    pair.receiver.receive(rest)
    pair.run()
    pair.check(1, encoded(1))
    pair.check(2, encoded(2))


def test_residuals_wait_on_their_own_connection():
    pair = Pair({"p": source()}, lanes=2, limits=SMALL)
    pair.ask("p")
    pair.accept()
    assert data_kinds(pair.from_sender(1 << 20, 1)) == []  # anchors wait on the other one
    anchors = pair.from_sender(1 << 20, 0)
    assert set(data_kinds(anchors)) == {0}
    residuals = pair.from_sender(1 << 20, 1)
    assert set(data_kinds(residuals)) == {1}
    # They arrive first, and are handed out last.
    pair.receiver.receive(residuals, 1)
    assert not [event for event in pair.take() if isinstance(event, ResidualPage)]
    pair.receiver.receive(anchors, 0)
    kinds = [type(event) for event in pair.take() if isinstance(event, AnchorPage | ResidualPage)]
    assert kinds == [AnchorPage] * 6 + [ResidualPage] * 6
    pair.run()
    pair.check(1, encoded())


def test_anchors_are_handed_out_first_whatever_arrived_first():
    pair = Pair({"a": source(1), "b": source(2)})
    pair.ask("a")
    pair.to_sender()
    pair.receiver.receive(pair.from_sender(1 << 20))
    pair.to_sender()
    pair.receiver.receive(pair.from_sender(1 << 20))  # nothing was taken yet, and the residuals of a are here
    pair.ask("b")
    pair.to_sender()
    pair.receiver.receive(pair.from_sender(1 << 20))
    kinds = [(event.request, type(event)) for event in pair.take() if isinstance(event, AnchorPage | ResidualPage)]
    assert [kind for _, kind in kinds] == [AnchorPage] * 12 + [ResidualPage] * 6
    assert {request for request, _ in kinds[:12]} == {1, 2}


# --- shares ------------------------------------------------------------------------------------------


def sent_bytes(data):
    found = {}
    for record in records(data):
        if record.type == Type.DATA:
            found[record.request] = found.get(record.request, 0) + HEADER_SIZE + len(record.body)
    return found


def test_requests_share_in_equal_parts():
    """Counted in bytes, although the frames of one are many times smaller than those of the other."""
    small = EncodedSource({"k": coded(8 * 200)})
    large = EncodedSource({"k": wide(16 * 20, channels=400)})
    pair = Pair({"small": small, "large": large}, limits=ReceiverLimits(max_data=1024))
    pair.ask("small")
    pair.ask("large")
    pair.to_sender()
    served = dict.fromkeys((1, 2), 0)
    opened = set()
    while len(opened) < 2:
        opened |= {record.request for record in records(pair.from_sender(1)) if record.type == Type.OPEN}
    for _ in range(40):
        for request, size in sent_bytes(pair.from_sender(1)).items():
            served[request] += size
        assert abs(served[1] - served[2]) <= 1024 + HEADER_SIZE
    assert min(served.values()) > 5000


def test_a_late_request_has_no_claim_to_what_it_missed():
    pair = Pair({"a": EncodedSource({"k": wide(16 * 60)}), "b": EncodedSource({"k": wide(16 * 60, 5)})}, limits=SMALL)
    pair.ask("a")
    pair.to_sender()
    pair.from_sender(30000)
    pair.ask("b")
    pair.to_sender()
    served = sent_bytes(pair.from_sender(10000))
    assert served[1] > 4000
    assert served[2] > 4000


# --- credit ------------------------------------------------------------------------------------------


def largest(tensors, which):
    return max(64 + each.layout.page_size(which, 0) for each in tensors.values() if each.layout.pages)


@pytest.mark.parametrize("lanes", [1, 2])
def test_the_smallest_windows_suffice(lanes):
    tensors = encoded()
    limits = ReceiverLimits(
        anchor_window=largest(tensors, "anchor"), residual_window=largest(tensors, "residual"), max_data=256
    )
    pair = Pair({"a": EncodedSource(tensors), "b": EncodedSource(tensors)}, limits=limits, lanes=lanes)
    requests = [pair.ask("a"), pair.ask("b")]
    pair.run()
    for request in requests:
        pair.check(request, tensors)


def test_a_receiver_that_takes_nothing_holds_no_more_than_its_windows():
    tensors = {"k": wide(16 * 50)}
    limits = ReceiverLimits(anchor_window=20000, residual_window=10000, max_data=256)
    pair = Pair({"p": EncodedSource(tensors)}, limits=limits)
    request = pair.ask("p")
    pair.to_sender()
    sent = {0: 0, 1: 0}
    for _ in range(50):
        data = pair.from_sender(1 << 20)
        sent = {kind: size + sent[kind] for kind, size in sent_sizes(data).items()}
        pair.receiver.receive(data)
        pair.to_sender()
    assert 20000 - largest(tensors, "anchor") < sent[0] <= 20000
    assert 10000 - largest(tensors, "residual") < sent[1] <= 10000
    pair.run()
    pair.check(request, tensors)


def test_residuals_that_nobody_takes_do_not_stop_anchors():
    """Full of residuals that wait for the anchors of a slow first connection."""
    tensors = {"k": wide(16 * 50)}
    pair = Pair({"p": EncodedSource(tensors)}, lanes=2, limits=ReceiverLimits(residual_window=4000, max_data=256))
    request = pair.ask("p")
    pair.accept()
    anchors = pair.from_sender(1 << 24, 0)
    pair.receiver.receive(pair.from_sender(1 << 24, 1), 1)
    pair.to_sender()
    assert pair.from_sender(1 << 24, 1) == b""  # the window of residuals is used up
    pair.receiver.receive(anchors)
    pair.run()
    pair.check(request, tensors)


def test_a_large_frame_is_not_starved_by_small_ones():
    """It waits for the whole window, and a slow receiver gives credit bit by bit: small frames must not take it."""
    large = {"k": wide(32, channels=300)}
    small = {"k": coded(8 * 2000)}
    limits = ReceiverLimits(anchor_window=largest(large, "anchor"), max_data=256)
    pair = Pair({"large": EncodedSource(large), "small": EncodedSource(small)}, limits=limits)
    pair.ask("small")
    pair.ask("large")
    order = []
    for step in range(10**5):
        pair.to_sender()
        sent = pair.from_sender(1)
        order += [record.request for record in records(sent) if record.type == Type.DATA and record.kind == 0]
        pair.receiver.receive(sent)
        if step % 2:  # slower than what arrives, so there is always something that was not taken
            event = pair.receiver.next_event()
            if isinstance(event, AnchorReady) and event.request == 2:
                break
    assert order.count(1) < 1000
    assert isinstance(event, AnchorReady)


def test_a_frame_beyond_the_window_is_refused():
    pair = Pair({"p": source()}, limits=ReceiverLimits(anchor_window=1000))
    request = pair.ask("p")
    pair.run()
    (failed,) = pair.of(Failed)
    assert (failed.request, failed.code) == (request, Code.REFUSED)
    assert "window" in failed.reason


@pytest.mark.parametrize(
    ("limits", "word"),
    [(ReceiverLimits(max_request_bytes=2000), "2000 bytes"), (ReceiverLimits(max_tensors=2), "2 tensors")],
)
def test_a_request_beyond_the_limits_is_refused(limits, word):
    pair = Pair({"p": source()}, limits=limits)
    pair.ask("p")
    pair.run()
    (failed,) = pair.of(Failed)
    assert word in failed.reason
    assert not pair.of(AnchorPage)
    assert pair.of(RequestOpened) == []


def test_a_header_beyond_the_limit_is_refused_by_the_sender():
    tensors = {f"layer.{i}": coded(0) for i in range(60)}
    pair = Pair({"p": EncodedSource(tensors)}, limits=ReceiverLimits(max_header=4096))
    pair.ask("p")
    pair.run()
    (failed,) = pair.of(Failed)
    assert failed.code == Code.REFUSED
    assert isinstance(pair.sender_events[-1], Ended)


def test_too_many_requests():
    pair = Pair({"p": source()}, sender_limits=SenderLimits(max_requests=2))
    requests = [pair.ask("p") for _ in range(3)]
    pair.run()
    assert [(event.request, event.code) for event in pair.of(Failed)] == [(requests[2], Code.BUSY)]
    for request in requests[:2]:
        pair.check(request, encoded())
    again = pair.ask("p")
    pair.run()
    pair.check(again, encoded())


# --- damage ------------------------------------------------------------------------------------------


def damage(page, kind, times, at=-1):
    """Flips a bit of a frame each time it comes, so many times."""
    left = [times]

    def change(data, lane):
        out = b""
        for part in forwards(data):
            (record,) = records(part)
            if record.type == Type.DATA and (record.kind, record.tensor, record.page) == (kind, 0, page) and left[0]:
                end = record.offset + len(record.body)
                place = at if at >= 0 else record.total - 1
                if record.offset <= place < end:
                    changed = bytearray(part)
                    changed[HEADER_SIZE + place - record.offset] ^= 4
                    left[0] -= 1
                    out += changed
                    continue
            out += part
        return out

    return change


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


# --- cancellation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", range(0, 40, 3))
def test_one_of_two_requests_is_cancelled(after):
    pair = Pair({"a": source(1), "b": source(2)}, limits=ReceiverLimits(anchor_window=4000, residual_window=3000))
    first, second = pair.ask("a"), pair.ask("b")
    pair.to_sender()
    for _ in range(after):
        pair.receiver.receive(pair.from_sender(1))
        pair.to_sender()
        if after % 2:
            pair.take()
    pair.receiver.cancel(first)
    before = len(pair.events)
    pair.run()
    later = [event for event in pair.events[before:] if event.request == first]
    assert later == [Cancelled(first)] or (not later and Done(first, 0) in pair.events[:before])
    pair.check(second, encoded(2))
    # All credit came back: a third request gets through the same windows.
    third = pair.ask("a")
    pair.run()
    pair.check(third, encoded(1))


def test_the_sender_hears_of_a_cancellation():
    pair = Pair({"p": source()})
    request = pair.ask("p")
    pair.to_sender()
    pair.from_sender(1000)
    pair.receiver.cancel(request)
    pair.to_sender()
    assert pair.sender_events[-1] == Cancelled(request)
    assert pair.from_sender(1 << 20) == b""
    pair.receiver.cancel(request)  # once more does nothing
    assert pair.receiver.data_to_send() == b""


def test_a_request_that_is_cancelled_before_it_is_answered():
    sender, receiver = stream.Sender(), stream.Receiver()
    receiver.connect()
    request = receiver.request("p")
    receiver.cancel(request)
    assert [type(event) for event in sender.receive(receiver.data_to_send())] == [stream.Requested, Cancelled]
    assert sender.open(request, source()) is False
    assert [record.type for record in records(sender.data_to_send(1 << 20))] == [Type.HELLO]


# --- resumption --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("records_before", range(0, 60, 4))
def test_a_lost_connection_is_resumed_from_the_last_whole_frame(lanes, records_before):
    pair = Pair({"p": source()}, limits=SMALL, lanes=lanes)
    request = pair.ask("p")
    pair.to_sender()
    for _ in range(records_before):
        for lane in range(lanes):
            pair.receiver.receive(pair.from_sender(1, lane), lane)
        pair.to_sender()
        if records_before % 8:
            pair.take()
    pair.take()
    here = {(type(event), event.tensor, event.page) for event in pair.events if hasattr(event, "page")}
    pair.sources = {"p": source()}  # another process, which encoded the same again
    pair.reconnect()
    sent = []

    def note(data, lane):
        sent.extend(
            (AnchorPage if record.kind == 0 else ResidualPage, record.tensor, record.page)
            for record in records(data)
            if record.type == Type.DATA and record.offset == 0
        )
        return data

    pair.run(note)
    assert not here & set(sent)
    assert len(here) + len(sent) == 12 or Done(request, 0) in pair.events
    assert len(pair.of(RequestOpened)) == 1
    pair.check(request, encoded())


def test_many_resumptions():
    """Every connection carries little more than one frame, and all of it gets through."""
    pair = Pair({"p": source()}, limits=SMALL)
    request = pair.ask("p")
    for _ in range(200):
        pair.to_sender()
        for _ in range(12):
            pair.receiver.receive(pair.from_sender(1))
            pair.to_sender()
        pair.take()
        if Done(request, 0) in pair.events:
            break
        pair.reconnect()
    pair.check(request, encoded())
    assert len(pair.of(AnchorPage)) == len(pair.of(ResidualPage)) == 6


def test_residuals_can_be_asked_for_later():
    """What the receiver has is told with its checksums, and only the residual comes."""
    pair = Pair({"p": source()})
    request = pair.ask("p")
    pair.to_sender()
    anchors = pair.from_sender(1 << 20)
    assert set(data_kinds(anchors)) == {0}
    pair.receiver.receive(anchors)
    pair.reconnect()
    pair.to_sender()
    assert set(data_kinds(pair.from_sender(1 << 20))) == {1}
    assert pair.receiver.data_to_send() == b""
    del request


@pytest.mark.parametrize("name", ["content", "description"])
def test_a_sender_with_something_else_under_the_name(name):
    """Equal descriptions and other pages, or other descriptions: nothing is mixed up."""
    pair = Pair({"p": source()})
    request = pair.ask("p")
    pair.to_sender()
    pair.receiver.receive(pair.from_sender(3000))
    pair.take()
    assert 0 < len(pair.of(AnchorPage)) < 6
    pair.sources = {"p": source(7) if name == "content" else EncodedSource({"k": wide(16)})}
    pair.reconnect()
    pair.run()
    (failed,) = pair.of(Failed)
    assert (failed.request, failed.code) == (request, Code.CHANGED)
    assert not pair.of(Done)


def test_checksums_that_a_sender_keeps_are_limited():
    pair = Pair({"p": EncodedSource({"k": coded(8 * 40)})})
    pair.ask("p")
    pair.to_sender()
    pair.receiver.receive(pair.from_sender(1 << 20))
    pair.take()
    pair.sender_limits = SenderLimits(max_checksums=39)
    pair.reconnect()
    with pytest.raises(ProtocolError, match="39 checksums"):
        pair.to_sender()
    pair.sender_limits = SenderLimits(max_checksums=40)
    pair.reconnect()
    pair.run()
    pair.check(1, {"k": coded(8 * 40)})


# --- ends --------------------------------------------------------------------------------------------


def test_farewells():
    pair = Pair({"p": source()})
    pair.run()
    pair.sender.close()
    pair.run()
    assert pair.events == [Closed(0)]
    pair.receiver.close()
    pair.to_sender()
    assert pair.sender_events == [Closed(0)]


def test_nothing_follows_a_farewell():
    pair = Pair({"p": source()})
    pair.ask("p")
    pair.accept()
    pair.receiver.receive(pair.from_sender(3000))
    pair.take()
    pair.receiver.close()
    pair.ask("p")
    pair.receiver.keepalive()
    assert records(pair.receiver.data_to_send())[-1].type == Type.BYE
    assert pair.receiver.data_to_send() == b""
    pair.sender.close()
    pair.sender.keepalive()
    assert [record.type for record in records(pair.from_sender(1 << 20))] == [Type.BYE]
    assert pair.sender.ended() == [Cancelled(1)]
    pair.reconnect()
    pair.run()
    pair.check(1, encoded())
    pair.check(2, encoded())


def test_signs_of_life_are_no_events():
    pair = Pair({}, lanes=2)
    pair.run()
    for lane in (0, 1):
        pair.sender.keepalive(lane)
        pair.receiver.keepalive(lane)
        assert [record.type for record in records(pair.from_sender(1, lane))] == [Type.PING]
    pair.to_sender()
    assert pair.events == pair.sender_events == []


def test_an_error_is_passed_on():
    for side in ("sender", "receiver"):
        pair = Pair({"p": source()})
        pair.ask("p")
        pair.run(size=1)
        getattr(pair, side).fail(Code.FAILED, "out of order")
        take = pair.receiver.receive if side == "sender" else pair.sender.receive
        said = pair.from_sender() if side == "sender" else pair.receiver.data_to_send()
        with pytest.raises(PeerError, match=r"out of order \(code 3\)"):
            take(said)


# --- rules -------------------------------------------------------------------------------------------

HELLO = {"session": b"s" * 16, "max_data": 256, "anchor_limit": 1 << 20, "residual_limit": 1 << 20}
TO_SENDER = Hello(role=Role.RECEIVER, **HELLO)


def data(**changes):
    """A data record with a whole frame of the request 1 of a receiver that has its header."""
    fields = {"kind": 0, "request": 1, "tensor": 1, "page": 1, "offset": 0, "total": 0, "body": b""}
    return Record(Type.DATA, **{**fields, **changes})


FRAME = 64 + coded(9, 1, dtype="float16").layout.page_size("anchor", 1)


@pytest.mark.parametrize(
    "record",
    [
        data(tensor=3),
        data(page=2, total=FRAME, body=bytes(9)),
        data(tensor=2, page=0, total=64, body=bytes(9)),
        data(total=FRAME + 1, body=bytes(9)),
        data(total=FRAME, body=b""),
        data(total=FRAME, body=bytes(FRAME + 1)),
        data(total=FRAME, offset=1, body=bytes(9)),
        data(total=FRAME, request=2, body=bytes(9)),
        data(total=FRAME, request=0, body=bytes(9)),
        data(total=1 << 40, body=bytes(9)),
        data(kind=1, tensor=0, page=9, total=FRAME, body=bytes(9)),
        Record(Type.LOST, 0, 1, 3, 0),
        Record(Type.LOST, 0, 2, 0, 0),
        Record(Type.ACCEPT, request=1),
        Record(Type.CREDIT, total=1 << 62),
        Record(Type.OPEN, request=9, body=b"x"),
        Record(Type.HELLO, body=bytes(64)),
        Record(Type.END, request=1, body=b"abc"),
        Record(Type.END, request=1, body=bytes(2000)),
        Record(Type.PING, page=1),
        Record(Type.PING, body=b"x"),
        Record(99),
    ],
)
def test_what_a_sender_must_not_send(record):
    pair = Pair({"p": source()})
    pair.ask("p")
    pair.accept()
    with pytest.raises(ProtocolError):
        pair.receiver.receive(record.pack())
    last = records(pair.receiver.data_to_send())[-1]
    assert last.type == Type.ERROR
    with pytest.raises(ProtocolError):
        pair.receiver.receive(Record(Type.PING).pack())


def test_a_page_must_not_come_twice():
    pair = Pair({"p": source()})
    pair.ask("p")
    pair.to_sender()
    parts = forwards(pair.from_sender(1 << 20))
    pair.receiver.receive(b"".join(parts))
    again = next(part for part in parts if records(part)[0].type == Type.DATA)
    with pytest.raises(ProtocolError, match="twice"):
        pair.receiver.receive(again)


def test_residuals_must_not_come_on_the_connection_of_anchors():
    pair = Pair({"p": source()}, lanes=2)
    pair.ask("p")
    pair.run(size=1)
    with pytest.raises(ProtocolError, match="connection 0 of 2"):
        pair.receiver.receive(data(kind=1, total=64).pack())


@pytest.mark.parametrize(
    "found",
    [
        [Record(Type.REQUEST, 0, 1, body=b"p"), Record(Type.REQUEST, 0, 1, body=b"p")],
        [Record(Type.REQUEST, 0, 0, body=b"p")],
        [Record(Type.REQUEST, 0, 1, body=b"")],
        [Record(Type.REQUEST, 0, 1, body=b"\xff")],
        [Record(Type.REQUEST, 0, 1, body=b"p" * 1025)],
        [Record(Type.ACCEPT, request=1)],
        [Record(Type.CANCEL, request=7)],
        [Record(Type.RECEIVED, request=7)],
        [Record(Type.AGAIN, 0, 1)],
        [Record(Type.REQUEST, 0, 1, body=b"p"), Record(Type.AGAIN, 0, 1, 7, 0)],
        [Record(Type.REQUEST, 0, 1, body=b"p"), Record(Type.AGAIN, 0, 1, 0, 4)],
        [Record(Type.REQUEST, 0, 1, body=b"p"), Record(Type.AGAIN, 1, 1, 0, 0)],
        [Record(Type.REQUEST, 0, 1, body=b"p"), Record(Type.HAVE, 0, 1, 0, 0, body=bytes(8))],
        [Record(Type.REQUEST, 0, 1, total=5, body=b"q"), Record(Type.HAVE, 0, 1, 0, 0, body=b"")],
        [Record(Type.REQUEST, 0, 1, total=5, body=b"q"), Record(Type.HAVE, 0, 1, 0, 0, body=bytes(7))],
        [
            Record(Type.REQUEST, 0, 1, total=5, body=b"q"),
            Record(Type.ACCEPT, request=1),
            Record(Type.HAVE, 0, 1, 0, 0, body=bytes(8)),
        ],
        [Record(Type.CREDIT, 0, total=(1 << 20) - 1)],
        [Record(Type.DATA, 0, 1)],
        [Record(Type.OPEN, request=1)],
        [Record(Type.HELLO, body=bytes(64))],
    ],
)
def test_what_a_receiver_must_not_send(found):
    pair = Pair({"p": EncodedSource(encoded())})
    pair.sender.receive(TO_SENDER.record().pack())

    def go():
        for record in found:
            for event in pair.sender.receive(record.pack()):
                if isinstance(event, stream.Requested) and event.name == "p":
                    pair.sender.open(event.request, pair.sources["p"])

    with pytest.raises(ProtocolError):
        go()
    assert [record.type for record in records(pair.from_sender(1 << 20))] == [Type.ERROR]


def test_answers_that_a_receiver_does_not_read_are_limited():
    sender = stream.Sender(SenderLimits(max_backlog=10000))
    sender.receive(TO_SENDER.record().pack())

    def flood():
        for number in range(1, 1000):
            for event in sender.receive(Record(Type.REQUEST, 0, number, body=b"x").pack()):
                sender.refuse(event.request, Code.UNKNOWN, "there is nothing under this name")

    with pytest.raises(ProtocolError, match="read answers"):
        flood()


def greeting(**changes):
    return Hello(**{"role": Role.RECEIVER, **HELLO, **changes}).record().pack()


@pytest.mark.parametrize(
    "first",
    [
        greeting(role=Role.SENDER),
        greeting(max_data=0),
        greeting(max_data=255),
        greeting(max_control=4095),
        greeting(lanes=3),
        greeting(lanes=0),
        greeting(lane=1, lanes=2),
        greeting(lane=2, lanes=2),
        Record(Type.PING).pack(),
        Record(Type.HELLO, body=bytes(64)).pack(),
        Record(Type.HELLO, body=struct.pack("<H", 1)).pack(),
        Record(Type.HELLO, body=b"").pack(),
    ],
)
def test_greetings_that_a_sender_refuses(first):
    with pytest.raises(ProtocolError):
        stream.Sender().receive(first)


def test_greetings_that_a_receiver_refuses():
    for changes in ({}, {"role": Role.SENDER}, {"role": Role.SENDER, "session": b"s" * 16, "lanes": 2}):
        receiver = stream.Receiver()
        receiver.connect(session=b"s" * 16)
        hello = Hello(**{"role": Role.RECEIVER, "session": b"t" * 16, **changes})
        with pytest.raises(ProtocolError):
            receiver.receive(hello.record().pack())


def test_a_second_connection_belongs_to_its_first():
    sender = stream.Sender()
    sender.receive(greeting(lanes=2))
    with pytest.raises(ProtocolError):
        sender.receive(greeting(lane=1, lanes=2, session=b"t" * 16), 1)
    sender = stream.Sender()
    sender.receive(greeting())
    with pytest.raises(ProtocolError):
        sender.receive(greeting(lane=1, lanes=2), 1)


def test_a_later_version_may_add_records_that_are_skipped():
    pair = Pair({"p": source()})
    request = pair.ask("p")
    extra = Record(0x8000, 5, 6, 7, 8, 9, 10, b"whatever").pack()
    pair.run(lambda data, _: b"".join(part + extra for part in forwards(data)))
    pair.check(request, encoded())


def test_bytes_without_a_connection():
    receiver = stream.Receiver()
    with pytest.raises(ProtocolError):
        receiver.receive(reason_record(Type.ERROR, 1, "x").pack())


def test_a_header_that_breaks_the_format_ends_its_request():
    pair = Pair({"p": source()})
    request = pair.ask("p")

    def change(data, lane):
        return b"".join(
            record._replace(body=bytes(record.body[:-1]) + b"\1").pack() if record.type == Type.OPEN else record.pack()
            for record in records(data)
        )

    pair.to_sender()
    pair.receiver.receive(change(pair.from_sender(1 << 20), 0))
    pair.take()
    (failed,) = pair.of(Failed)
    assert (failed.request, failed.code) == (request, Code.REFUSED)
    assert "checksum" in failed.reason


def test_frame_headers_are_checked_against_their_place():
    """A frame of another page, sound in itself, under the address of this one."""
    pair = Pair({"p": source()})
    request = pair.ask("p")

    def change(data, lane):
        return b"".join(
            record._replace(page={1: 2, 2: 1}.get(record.page, record.page)).pack()
            if record.type == Type.DATA and record.tensor == 0
            else record.pack()
            for record in records(data)
        )

    pair.run(change)
    assert {event.page for event in pair.of(Damaged)} == {1, 2}
    assert pair.events[-1] == Done(request, 4)
    assert FrameHeader.unpack(pair.of(AnchorPage)[0].frame.pack()).page == 0
