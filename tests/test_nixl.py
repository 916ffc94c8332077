"""The split transfer over NIXL: over a network of our own in one process, and, if asked for, over the real one."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import queue
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq.errors import (
    AnchorChecksumError,
    ConnectionLostError,
    FrameError,
    HeaderChecksumError,
    IncompleteError,
    LimitError,
    MissingLibraryError,
    ParamsError,
    ProtocolError,
    SilenceError,
    SourceFailedError,
)
from lynxq.stream import (
    AnchorPage,
    AnchorReady,
    Cancelled,
    ContainerSource,
    Damaged,
    Delivered,
    Done,
    EncodedSource,
    Ended,
    ReceiverLimits,
    RequestOpened,
    ResidualPage,
    ResidualReady,
    Source,
    TensorOpened,
)
from lynxq.stream.nixl import NixlAgent, NixlReceiver, NixlSender
from lynxq.stream.nixl.messages import Notice, Offer, Ticket
from lynxq.stream.nixl.places import Place, places, slices
from tests.environments import environment

SLOW = "LYNXQ_SLOW_TESTS"
SMALL = lynxq.Params.keys(page=8, range_size=8, chunk=4)


class Network:
    """What NIXL does, in one process: writes that take steps, and notices behind them."""

    def __init__(self, order=None, *, by_itself=False):
        self.agents, self.pending, self.log = {}, [], []
        self.by_itself = by_itself
        self.order = order or (lambda _: 0)
        self.cut = False

    def step(self):
        """Finish one of the writes that are under way."""
        if not self.pending:
            return False
        transfer = self.pending.pop(self.order(len(self.pending)))
        source, peer, address, notice, sender = transfer["what"]
        assert any(low <= address and address + source.size <= high for low, high in self.agents[peer].memory.values())
        ctypes.memmove(address, source.ctypes.data, source.size)
        self.agents[peer].inbox.append((sender, notice))
        transfer["state"] = "done"
        return True


class FakeAgent:
    def __init__(self, network, name):
        self.network, self.name = network, name
        self.memory, self.inbox, self.next = {}, [], 0
        network.agents[name] = self

    def metadata(self):
        return self.name.encode()

    def register(self, memory):
        self.next += 1
        self.memory[self.next] = (memory.ctypes.data, memory.ctypes.data + memory.size)
        return self.next

    def deregister(self, registration):
        del self.memory[registration]

    def add_peer(self, metadata):
        if metadata.decode() not in self.network.agents:
            raise ConnectionLostError("no such agent")
        return metadata.decode()

    def write(self, source, peer, address, notice):
        if self.network.cut:
            raise ConnectionLostError("cut")
        begin = source.ctypes.data
        assert any(low <= begin and begin + source.size <= high for low, high in self.memory.values())
        transfer = {"state": "busy", "what": (source, peer, address, notice, self.name)}
        self.network.pending.append(transfer)
        waiting = sum(Notice.unpack(each["what"][3]).stream == "anchor" for each in self.network.pending)
        self.network.log.append((Notice.unpack(notice), waiting))
        return transfer

    def state(self, transfer):
        if self.network.cut:
            raise ConnectionLostError("cut")
        if self.network.by_itself:
            self.network.step()
        return transfer["state"]

    def notify(self, peer, notice):
        if self.network.cut:
            raise ConnectionLostError("cut")
        self.network.agents[peer].inbox.append((self.name, notice))

    def notices(self):
        found, self.inbox = self.inbox, []
        return found


def tensors(seed=0, shapes=((20, 2, 8), (3, 2, 8), (0, 2, 8), (16, 4))):
    rng = np.random.default_rng(seed)
    return {
        f"t{index}": lynxq.encode(rng.standard_normal(shape, dtype=np.float32), SMALL, token_axis=0)
        for index, shape in enumerate(shapes)
    }


def pair(network=None, *, slice_bytes=300, window=2, limits=None):
    network = network or Network()
    sender = NixlSender(FakeAgent(network, "prefill"), slice_bytes=slice_bytes, window=window)
    receiver = NixlReceiver(FakeAgent(network, "decode"), limits=limits)
    return network, sender, receiver


def drive(network, sender, receiver, between=lambda: None):
    """Everything until nothing moves; the events of both sides."""
    sent, got = [], []
    for _ in range(100_000):
        before = len(sent), len(got)
        sent += sender.poll()
        moved = network.step()
        between()
        got += receiver.poll()
        if not moved and (len(sent), len(got)) == before:
            return sent, got
    raise AssertionError("it does not end")


def same(encoded, other):
    assert encoded.layout == other.layout
    assert bytes(encoded.anchor) == bytes(other.anchor)
    assert (encoded.residual is None) == (other.residual is None)
    assert encoded.residual is None or bytes(encoded.residual) == bytes(other.residual)


@given(
    st.integers(1, 5000),
    st.integers(1, 4),
    st.integers(0, 1000),
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_what_arrives_is_what_was_sent(slice_bytes, window, seed, requests):
    """Whatever the slices, and whatever order the network finishes them in."""
    rng = np.random.default_rng(seed)
    network, sender, receiver = pair(
        Network(lambda count: int(rng.integers(count))), slice_bytes=slice_bytes, window=window
    )
    given_, numbers = [], []
    for index, lengths in enumerate(requests):
        given_.append(tensors(seed + index, [(length, 2, 8) for length in lengths]))
        number, ticket = receiver.open(sender.offer(EncodedSource(given_[-1], metadata={"n": str(index)})))
        assert sender.accept(ticket) == index + 1
        numbers.append(number)
    sent, got = drive(network, sender, receiver)
    assert sorted(sent, key=lambda event: event.request) == [Delivered(index + 1) for index in range(len(requests))]
    for index, (number, encoded) in enumerate(zip(numbers, given_, strict=True)):
        received = receiver.received(number)
        assert received.metadata == {"n": str(index)}
        for name, each in encoded.items():
            same(received.encoded(name), each)
        check_events([event for event in got if event.request == number], encoded)
    assert all(not agent.memory for agent in network.agents.values())  # nothing stays registered
    last = (
        max(index for index, (notice, _) in enumerate(network.log) if notice.stream == "anchor") if network.log else -1
    )
    assert all(notice.stream == "anchor" for notice, _ in network.log[: last + 1])  # of all requests


def check_events(events, encoded):
    """The events of one request: every page once, anchors first, and what is ready when it is."""
    assert isinstance(events[0], RequestOpened)
    assert [event.name for event in events if isinstance(event, TensorOpened)] == list(encoded)
    for page_kind, ready_kind, stream in (
        (AnchorPage, AnchorReady, "anchor"),
        (ResidualPage, ResidualReady, "residual"),
    ):
        pages = [(event.name, event.page) for event in events if isinstance(event, page_kind)]
        assert sorted(pages) == sorted(
            (name, page) for name, each in encoded.items() for page in range(each.layout.pages)
        )
        for name, each in encoded.items():
            (ready,) = [
                index for index, event in enumerate(events) if isinstance(event, ready_kind) and event.name == name
            ]
            own = [index for index, event in enumerate(events) if isinstance(event, page_kind) and event.name == name]
            assert len(own) == each.layout.pages
            assert all(index < ready for index in own)
        for event in events:
            if isinstance(event, page_kind):
                begin = encoded[event.name].layout.page_offset(stream, event.page)
                whole = bytes(getattr(encoded[event.name], stream))
                assert bytes(event.payload) == whole[begin : begin + len(event.payload)]
                assert event.frame.payload == lynxq.format.frames.checksum(event.payload)
    anchors = [index for index, event in enumerate(events) if isinstance(event, AnchorPage)]
    residuals = [index for index, event in enumerate(events) if isinstance(event, ResidualPage)]
    assert not anchors or not residuals or max(anchors) < min(residuals)
    assert events[-1] == Done(events[0].request, 0)


def test_no_residual_is_written_while_an_anchor_is_under_way():
    """Also not for a request that comes while residuals of another one are being written."""
    network, sender, receiver = pair(slice_bytes=1, window=3)
    sender.accept(receiver.open(sender.offer(EncodedSource(tensors())))[1])
    while not any(notice.stream == "residual" for notice, _ in network.log):
        sender.poll()
        network.step()
    late = sender.accept(receiver.open(sender.offer(EncodedSource(tensors(1))))[1])
    begun = len(network.log)
    drive(network, sender, receiver)
    of_late = [index for index, (notice, _) in enumerate(network.log) if notice.stream == "anchor" and index >= begun]
    assert late == 2
    # Residuals that were under way end; no other is begun before the last anchor.
    assert of_late == list(range(begun, begun + len(of_late)))
    assert all(waiting == 0 for notice, waiting in network.log if notice.stream == "residual")


def test_requests_take_turns():
    network, sender, receiver = pair(slice_bytes=1, window=1)
    for seed in range(2):
        sender.accept(receiver.open(sender.offer(EncodedSource(tensors(seed))))[1])
    drive(network, sender, receiver)
    anchors = [notice.request for notice, _ in network.log if notice.stream == "anchor"]
    assert anchors == [1, 2] * (len(anchors) // 2)


def test_anchors_alone():
    encoded = tensors()
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)), tier="anchor")
    sender.accept(ticket)
    _, got = drive(network, sender, receiver)
    assert not any(isinstance(event, ResidualPage | ResidualReady) for event in got)
    assert got[-1] == Done(number, 0)
    for name, each in encoded.items():
        same(receiver.received(number).encoded(name, "anchor"), each.anchor_only())
        with pytest.raises(IncompleteError):
            receiver.received(number).encoded(name)


def test_a_container_is_sent_as_it_is(tmp_path):
    encoded = tensors()
    lynxq.save(tmp_path / "kv.lynx", encoded, metadata={"model": "toy"})
    network, sender, receiver = pair()
    with lynxq.open(tmp_path / "kv.lynx") as reader:
        number, ticket = receiver.open(sender.offer(ContainerSource(reader)))
    sender.accept(ticket)
    drive(network, sender, receiver)
    received = receiver.received(number)
    lynxq.save(tmp_path / "again.lynx", {name: received.encoded(name) for name in encoded}, metadata=received.metadata)
    assert (tmp_path / "again.lynx").read_bytes() == (tmp_path / "kv.lynx").read_bytes()


def test_residuals_that_come_first_wait_for_anchors():
    encoded = tensors()
    network, sender, receiver = pair(slice_bytes=1)
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)))
    sender.accept(ticket)
    held = network.agents["decode"]
    early = []
    for _ in range(100):
        assert sender.poll() == []
        network.step()
        early += held.notices()
    held.inbox = sorted(early, key=lambda each: Notice.unpack(each[1]).stream, reverse=True)
    half = held.inbox[: len(held.inbox) * 3 // 4]
    rest, held.inbox = held.inbox[len(half) :], half
    first = receiver.poll()
    assert not any(isinstance(event, ResidualPage) for event in first)
    held.inbox = rest
    check_events(first + receiver.poll(), encoded)
    assert number == 1


# --- damage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["anchor", "residual"])
@pytest.mark.parametrize(("offset", "error"), [(70, None), (10, FrameError)])
def test_a_damaged_page_is_reported_and_not_used(stream, offset, error):
    encoded = tensors()
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)))
    place = places(EncodedSource(encoded).header, stream)[1]
    address = Ticket.unpack(ticket).regions[stream][0] + place.begin + offset
    written = [False]

    def damage():
        for _, data in network.agents["decode"].inbox:
            notice = Notice.unpack(data)
            if notice.stream == stream and notice.begin <= place.begin < notice.end and not written[0]:
                ctypes.memset(address, 0xA5, 1)
                written[0] = True

    sender.accept(ticket)
    _, got = drive(network, sender, receiver, damage)
    damaged = [event for event in got if isinstance(event, Damaged)]
    assert [(event.stream, event.name, event.page) for event in damaged][:1] == [(stream, "t0", 1)]
    if error is not None or stream == "anchor":
        assert isinstance(damaged[0].error, error or AnchorChecksumError)
    # The residual of an anchor that is not there is of no use.
    assert len(damaged) == (2 if stream == "anchor" else 1)
    assert got[-1] == Done(number, len(damaged))
    ready = {event.name for event in got if isinstance(event, AnchorReady if stream == "anchor" else ResidualReady)}
    assert ready == {"t1", "t2", "t3"}
    received = receiver.received(number)
    with pytest.raises(IncompleteError):
        received.encoded("t0")
    same(received.encoded("t1"), encoded["t1"])
    same(received.encoded("t0", pages=(2, 3)), encoded["t0"].pages(2, 3))


@pytest.mark.parametrize("other", [{"seed": 0, "page": 2, "n": "0"}, {"seed": 1, "page": 1, "n": "1"}])
def test_a_sound_frame_of_another_page_or_segment_is_not_taken(other):
    encoded = tensors(0, [(40, 2, 8)])
    network, sender, receiver = pair()
    source = EncodedSource(encoded, metadata={"n": "0"})
    number, ticket = receiver.open(sender.offer(source))
    sender.accept(ticket)
    place = places(source.header, "anchor")[1]
    elsewhere = EncodedSource(tensors(other["seed"], [(40, 2, 8)]), metadata={"n": other["n"]})
    frame = elsewhere.frame("anchor", 0, other["page"])
    foreign = np.frombuffer(frame.header.pack() + bytes(frame.payload), np.uint8)
    assert foreign.size == place.end - place.begin

    def damage():
        if any(Notice.unpack(data).end >= place.end for _, data in network.agents["decode"].inbox):
            begin = Ticket.unpack(ticket).regions["anchor"][0] + place.begin
            ctypes.memmove(begin, foreign.ctypes.data, foreign.size)

    _, got = drive(network, sender, receiver, damage)
    first, second = [event for event in got if isinstance(event, Damaged)]
    assert isinstance(first.error, FrameError)
    assert (first.stream, first.page, second.stream, second.page) == ("anchor", 1, "residual", 1)
    assert got[-1] == Done(number, 2)
    same(receiver.received(number).encoded("t0", pages=(2, 5)), encoded["t0"].pages(2, 5))


def test_memory_that_changes_later_changes_nothing():
    encoded = tensors()
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)))
    sender.accept(ticket)
    told = Ticket.unpack(ticket).regions["anchor"]
    got = []
    while not any(isinstance(event, AnchorReady) and event.name == "t0" for event in got):
        sender.poll()
        network.step()
        got += receiver.poll()
    layout = encoded["t0"].layout
    ctypes.memset(told[0], 0xFF, layout.pages * 64 + layout.stream_size("anchor"))
    same(receiver.received(number).encoded("t0", "anchor"), encoded["t0"].anchor_only())
    page = next(event for event in got if isinstance(event, AnchorPage))
    assert bytes(page.payload) == bytes(encoded["t0"].anchor)[: len(page.payload)]


# --- ends --------------------------------------------------------------------------------------------


def test_cancel_waits_until_nothing_is_written():
    network, sender, receiver = pair(slice_bytes=1)
    number, ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    other, other_ticket = receiver.open(sender.offer(EncodedSource(tensors(1))))
    sender.accept(ticket)
    sender.accept(other_ticket)
    sender.poll()
    receiver.poll()
    receiver.cancel(number)
    receiver.cancel(number)
    assert len(network.pending) == 2
    assert network.agents["decode"].memory  # still there: writes are under way
    sent, got = drive(network, sender, receiver)
    assert sorted(map(repr, sent)) == sorted(map(repr, [Cancelled(1), Delivered(2)]))
    assert [event for event in got if event.request == number] == [Cancelled(number)]
    assert Done(other, 0) in got
    assert all(not agent.memory for agent in network.agents.values())
    with pytest.raises(ParamsError):
        receiver.received(number)


def test_a_request_may_be_cancelled_before_its_ticket_has_come():
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    receiver.cancel(number)
    FakeAgent(network, "stranger").notify("prefill", Notice("cancel", 2).pack())
    other, other_ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    assert sender.poll() == []
    sender.accept(ticket)
    sender.accept(other_ticket)
    sent, got = drive(network, sender, receiver)
    assert sorted(map(repr, sent)) == sorted(map(repr, [Cancelled(1), Delivered(2)]))
    assert Cancelled(number) in got
    assert got[-1] == Done(other, 0)
    assert {notice.request for notice, _ in network.log} == {other}
    assert all(not agent.memory for agent in network.agents.values())


def test_a_network_that_is_cut_ends_the_request():
    network, sender, receiver = pair(slice_bytes=1)
    sender.accept(receiver.open(sender.offer(EncodedSource(tensors())))[1])
    sender.poll()
    network.cut = True
    (ended,) = sender.poll()
    assert isinstance(ended, Ended)
    assert "cut" in ended.reason
    assert not network.agents["prefill"].memory
    assert sender.poll() == []
    with pytest.raises(SilenceError):
        list(receiver.run(timeout=0.01))
    receiver.close(timeout=0.01)
    assert network.agents["decode"].memory  # who cannot be told to stop may still write


def test_a_sender_that_makes_no_progress():
    _, sender, receiver = pair()
    sender.accept(receiver.open(sender.offer(EncodedSource(tensors())))[1])
    with pytest.raises(SilenceError):
        list(sender.run(timeout=0.01))
    sender.close(timeout=0.01)


def test_delivered_means_that_the_receiver_has_seen_it():
    network, sender, receiver = pair()
    sender.accept(receiver.open(sender.offer(EncodedSource(tensors())))[1])
    for _ in range(100):
        assert sender.poll() == []
        network.step()
    assert isinstance(receiver.poll()[-1], Done)
    assert sender.poll() == [Delivered(1)]


def test_what_cannot_be_acknowledged_is_there_all_the_same():
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    sender.accept(ticket)
    for _ in range(100):
        sender.poll()
        network.step()
    network.cut = True
    assert receiver.poll()[-1] == Done(number, 0)
    with pytest.raises(SilenceError):
        list(sender.run(timeout=0.01))


def test_closing_ends_what_is_open():
    network, sender, _ = pair()
    with sender:
        sender.offer(EncodedSource(tensors()))
        withdrawn = Offer.unpack(sender.offer(EncodedSource(tensors()))).request
        sender.withdraw(withdrawn)
        with pytest.raises(ParamsError):
            sender.withdraw(withdrawn)
    assert not network.agents["prefill"].memory


def test_a_request_is_forgotten_when_it_has_ended():
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    with pytest.raises(ParamsError):
        receiver.forget(number)
    sender.accept(ticket)
    drive(network, sender, receiver)
    receiver.forget(number)
    with pytest.raises(ParamsError):
        receiver.received(number)


# --- what a peer may say ----------------------------------------------------------------------------


def test_offers_that_are_not_right():
    _, sender, receiver = pair()
    offer = json.loads(sender.offer(EncodedSource(tensors())))
    for change in (
        {"lynxq": "ticket"},
        {"version": 2},
        {"header": "?"},
        {"header": 3},
        {"request": -1},
        {"request": 1.0},
        {"agent": None},
    ):
        with pytest.raises(ProtocolError):
            receiver.open(json.dumps({**offer, **change}).encode())
    for text in (b"", b"{", b"[]", b"\xff", b"3", b'{"lynxq": "offer", "version": 1}'):
        with pytest.raises(ProtocolError):
            receiver.open(text)
    header = bytearray(Offer.unpack(json.dumps(offer).encode()).header)
    header[100] ^= 1
    with pytest.raises(HeaderChecksumError):
        receiver.open(Offer(b"prefill", 1, bytes(header)).pack())
    with pytest.raises(ConnectionLostError):
        receiver.open(Offer(b"nobody", 1, Offer.unpack(json.dumps(offer).encode()).header).pack())


def test_offers_beyond_the_limits():
    offer = pair()[1].offer(EncodedSource(tensors()))
    for limits in (ReceiverLimits(max_request_bytes=1000), ReceiverLimits(max_tensors=3)):
        network, _, receiver = pair(limits=limits)
        with pytest.raises(LimitError):
            receiver.open(offer)
        assert not network.agents["decode"].memory


def test_tickets_that_are_not_right():
    _, sender, receiver = pair()
    _, ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    fields = json.loads(ticket)
    anchor = fields["regions"]["anchor"]
    for change in (
        {"request": 7},
        {"identity": 0},
        {"regions": {}},
        {"regions": {"residual": fields["regions"]["residual"]}},
        {"regions": {"anchor": [anchor[0], anchor[1] - 1]}},
        {"regions": {"anchor": anchor, "other": [0, 0]}},
        {"regions": [1]},
        {"receiver": "1"},
    ):
        with pytest.raises(ProtocolError):
            sender.accept(json.dumps({**fields, **change}).encode())
    sender.accept(ticket)
    with pytest.raises(ProtocolError):  # twice
        sender.accept(ticket)


def test_notices_that_are_not_right_are_ignored():
    encoded = tensors()
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)))
    sender.accept(ticket)
    size = Ticket.unpack(ticket).regions["anchor"][1]
    inbox = network.agents["decode"].inbox
    FakeAgent(network, "stranger")
    inbox += [("stranger", Notice("written", number, "anchor", 0, size).pack())]
    inbox += [("stranger", Notice("stopped", number).pack())]
    inbox += [("prefill", Notice("stopped", number).pack())]
    inbox += [("prefill", Notice("written", 99, "anchor", 0, size).pack())]
    inbox += [("prefill", data) for data in (b"", b"hello", b"lynxq written 1 anchor 0", b"lynxq written x anchor 0 1")]
    assert not any(isinstance(event, AnchorPage | Damaged | Cancelled) for event in receiver.poll())
    assert Notice.unpack(b"lynxq written " + b"9" * 5000 + b" anchor 0 1") is None
    network.agents["prefill"].inbox += [("stranger", Notice("cancel", 1).pack())]
    sent, _ = drive(network, sender, receiver)
    assert sent == [Delivered(1)]
    for name, each in encoded.items():
        same(receiver.received(number).encoded(name), each)


def test_a_slice_that_is_announced_twice_is_handed_out_once():
    encoded = tensors()
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)))
    sender.accept(ticket)

    def twice():
        network.agents["decode"].inbox += network.agents["decode"].inbox

    _, got = drive(network, sender, receiver, twice)
    check_events([event for event in got if event.request == number], encoded)


def test_a_source_whose_frames_do_not_exist_yet():
    class Later(Source):
        header = EncodedSource(tensors()).header

        def frame(self, stream, tensor, page):
            return None

    with pytest.raises(SourceFailedError):
        pair()[1].offer(Later())


def test_slices_are_whole_frames():
    frames = [Place(0, 10, 0, 0), Place(10, 20, 0, 1), Place(20, 50, 1, 0), Place(50, 55, 1, 1)]
    assert list(slices(frames, 20)) == [(0, 20), (20, 50), (50, 55)]
    assert list(slices(frames, 1)) == [(0, 10), (10, 20), (20, 50), (50, 55)]
    assert list(slices(frames, 1000)) == [(0, 55)]
    assert list(slices([], 10)) == []


def test_the_example_of_the_documentation(monkeypatch):
    """Its two sides, each in a thread of its own, over our network."""
    page = (Path(__file__).parents[1] / "docs" / "integrations" / "nixl.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    network, encoded = Network(by_itself=True), tensors()
    for side, name in ((lynxq.stream.nixl.sender, "prefill"), (lynxq.stream.nixl.receiver, "decode")):
        monkeypatch.setattr(side, "NixlAgent", functools.partial(FakeAgent, network, name))
    there, back = queue.Queue(), queue.Queue()
    names = [
        {"tensors": encoded, "send": there.put, "receive": back.get, "print": str},
        {"send": back.put, "receive": there.get},
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(exec, blocks, names))
    assert set(names[1]["cache"]) == set(encoded)
    for name, each in encoded.items():
        assert np.array_equal(names[1]["cache"][name], lynxq.decode_full(each))


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in ("nixl", "nixl_cu12", "nixl_cu13")), reason="NIXL is installed"
)
def test_it_says_what_is_missing():
    with pytest.raises(MissingLibraryError, match="nixl"):
        NixlAgent()


# --- the real one -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python():
    python = environment("nixl", ["numpy"], without_dependencies=["nixl-cu12==1.5.1"])
    subprocess.run([python, "-m", "lynxq", "warmup"], check=True)
    return python


@pytest.mark.skipif(SLOW not in os.environ, reason=f"makes an environment of 600 MB: set {SLOW}=1")
@pytest.mark.parametrize("scenario", ["transfer", "anchors", "cancel", "killed-receiver", "killed-sender"])
@pytest.mark.parametrize("transport", ["", "tcp"])
def test_two_processes(tmp_path, python, scenario, transport):
    script = Path(__file__).with_name("nixl_processes.py")
    variables = {**os.environ, "PYTHONPATH": "", **({"UCX_TLS": transport} if transport else {})}
    pipe, codes = subprocess.PIPE, {}
    with (tmp_path / "decode").open("w+") as decode_log, (tmp_path / "prefill").open("w+") as prefill_log:
        command = [python, script, "decode", scenario]
        decode = subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, stderr=decode_log)
        command = [python, script, "prefill", scenario]
        prefill = subprocess.Popen(command, env=variables, stdin=decode.stdout, stdout=decode.stdin, stderr=prefill_log)
        decode.stdout.close()
        decode.stdin.close()
        try:
            codes = {"decode": decode.wait(600), "prefill": prefill.wait(600)}
        finally:
            decode.kill()
            prefill.kill()
            decode.wait()
            prefill.wait()
            logs = [file.seek(0) or file.read()[-4000:] for file in (decode_log, prefill_log)]
    killed = scenario.removeprefix("killed-")
    expected = {"decode": -9 * (killed == "receiver"), "prefill": -9 * (killed == "sender")}
    assert codes == expected, "\n".join(logs)
