"""What NIXL does, in one process: agents, a network between them, and both sides of a transfer."""

from __future__ import annotations

import ctypes

import numpy as np

import lynxq
from lynxq.errors import ConnectionLostError
from lynxq.stream import AnchorPage, AnchorReady, Done, RequestOpened, ResidualPage, ResidualReady, TensorOpened
from lynxq.stream.nixl import NixlReceiver, NixlSender
from lynxq.stream.nixl.messages import Notice

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
