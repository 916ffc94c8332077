"""Sender and receiver under every order of events that hypothesis can think of."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lynxq import stream
from lynxq.errors import ProtocolError
from lynxq.stream import (
    AnchorPage,
    AnchorReady,
    Cancelled,
    Damaged,
    Done,
    EncodedSource,
    Failed,
    Received,
    ReceiverLimits,
    RequestOpened,
    ResidualPage,
    ResidualReady,
    Retried,
    TensorOpened,
)
from lynxq.stream.records import HEADER_SIZE
from tests.stream_tools import coded, data_kinds, same, wide

TENSORS = {
    "large": {"k": wide(40), "v": wide(20, 1)},
    "small": {"a": coded(30, 2), "b": coded(0), "c": coded(9, 3, dtype="float16")},
    "bare": {"k": wide(33, 4).anchor_only()},
}
PAGES = {name: sum(each.layout.pages for each in tensors.values()) for name, tensors in TENSORS.items()}
WINDOW = 4096


class Growing(EncodedSource):
    """A source whose pages come into being one after the other."""

    made = 0

    def frame(self, which, tensor, page):
        position = self._first_positions[tensor] + page
        return super().frame(which, tensor, page) if position < self.made else None


class Transfers(RuleBasedStateMachine):
    """A receiver that lives on, senders that come and go, and pipes between them that cut, hold, damage and lose."""

    @initialize(lanes=st.integers(1, 2))
    def begin(self, lanes):
        self.lanes = lanes
        self.receiver = stream.Receiver(
            ReceiverLimits(anchor_window=WINDOW, residual_window=WINDOW, max_data=256, retries=2)
        )
        self.made = dict.fromkeys(TENSORS, 0)
        self.wanted = {}  # request -> name, tier
        self.received = {}
        self.seen = {}  # request -> pages that were handed out
        self.over = {}  # request -> its last event
        self.damaged = set()
        self.connect()

    def connect(self):
        self.sender = stream.Sender()
        self.sources = {}
        for name, tensors in TENSORS.items():
            self.sources[name] = Growing(tensors)
            self.sources[name].made = self.made[name]
        self.receiver.connect(self.lanes)
        self.pipes = {(side, lane): bytearray() for side in "sr" for lane in range(self.lanes)}

    # --- rules -----------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(sorted(TENSORS)), tier=st.sampled_from(["full", "anchor"]))
    @precondition(lambda self: len(self.wanted) < 5)
    def ask(self, name, tier):
        request = self.receiver.request(name, tier)
        self.wanted[request] = name, tier
        self.seen[request] = []

    @rule(data=st.data())
    @precondition(lambda self: self.wanted)
    def cancel(self, data):
        request = data.draw(st.sampled_from(sorted(self.wanted)))
        self.receiver.cancel(request)
        self.take(1000)
        assert request in self.over

    @rule(name=st.sampled_from(sorted(TENSORS)), pages=st.integers(1, 9))
    def make(self, name, pages):
        self.made[name] = self.sources[name].made = min(self.made[name] + pages, PAGES[name])

    @rule(lane=st.integers(0, 1), size=st.integers(1, 3000))
    def send(self, lane, size):
        if lane >= self.lanes:
            return
        sent = self.sender.data_to_send(size, lane)
        kinds = data_kinds(sent)
        assert kinds == sorted(kinds)  # nothing happened in between: an anchor that could leave has left
        assert len(sent) < size + 256 + HEADER_SIZE + 4096
        self.pipes["s", lane] += sent
        if 1 in kinds:
            assert 0 not in data_kinds(self.peek())

    def peek(self):
        """The next record of the first connection, which goes its way."""
        sent = self.sender.data_to_send(1, 0)
        self.pipes["s", 0] += sent
        return sent

    @rule(lane=st.integers(0, 1), size=st.integers(1, 3000))
    def arrive(self, lane, size):
        if lane >= self.lanes:
            return
        pipe = self.pipes["s", lane]
        part = bytes(pipe[:size])
        del pipe[:size]
        try:
            self.receiver.receive(part, lane)
        except ProtocolError:
            if not self.damaged:
                raise
            self.lose()

    @rule(lane=st.integers(0, 1), size=st.integers(1, 3000))
    def answer(self, lane, size):
        if lane >= self.lanes or (lane and self.sender.peer is None):  # a transport lets the first one begin
            return
        pipe = self.pipes["r", lane]
        pipe += self.receiver.data_to_send(lane)
        part = bytes(pipe[:size])
        del pipe[:size]
        for event in self.sender.receive(part, lane):
            if isinstance(event, stream.Requested):
                self.sender.open(event.request, self.sources[event.name])

    @rule(lane=st.integers(0, 1), data=st.data())
    @precondition(lambda self: any(self.pipes.values()))
    def harm(self, lane, data):
        """Flip a bit of what is on its way; it may hit anything."""
        pipe = self.pipes.get(("s", lane))
        if not pipe:
            return
        at = data.draw(st.integers(0, len(pipe) - 1))
        pipe[at] ^= 1 << data.draw(st.integers(0, 7))
        self.damaged.add("something")

    @rule(rounds=st.integers(1, 6))
    def flow(self, rounds):
        """Everything goes well for a while."""
        for _ in range(rounds):
            for lane in range(self.lanes):
                self.answer(lane, 1 << 20)
                self.send(lane, 700)
                self.arrive(lane, 1 << 20)
            self.take(3)

    @rule()
    @precondition(lambda self: any(self.pipes.values()))
    def lose(self):
        self.sender.lost()
        self.receiver.disconnect()
        self.connect()

    @rule(count=st.integers(1, 20))
    def take(self, count):
        for _ in range(count):
            event = self.receiver.next_event()
            if event is None:
                return
            self.check(event)

    # --- what must hold ------------------------------------------------------------------------------

    def check(self, event):
        request = event.request
        assert request not in self.over, "an event after the last one"
        name, tier = self.wanted[request]
        tensors = TENSORS[name]
        if isinstance(event, RequestOpened):
            assert request not in self.received
            assert list(event.layouts) == list(tensors)
            self.received[request] = Received(event.header)
        elif isinstance(event, AnchorPage | ResidualPage):
            which = "anchor" if isinstance(event, AnchorPage) else "residual"
            key = which, event.name, event.page
            assert key not in self.seen[request]
            assert which == "anchor" or ("anchor", event.name, event.page) in self.seen[request]
            assert which == "anchor" or tier == "full"
            layout = tensors[event.name].layout
            begin, size = layout.page_offset(which, event.page), layout.page_size(which, event.page)
            assert bytes(event.payload) == getattr(tensors[event.name], which)[begin : begin + size].tobytes()
            self.seen[request].append(key)
            self.received[request].add(event)
        elif isinstance(event, AnchorReady | ResidualReady):
            which = "anchor" if isinstance(event, AnchorReady) else "residual"
            pages = {page for kind, tensor, page in self.seen[request] if (kind, tensor) == (which, event.name)}
            assert pages == set(range(tensors[event.name].layout.pages))
        elif isinstance(event, Damaged | Retried):
            assert self.damaged
        elif isinstance(event, Done):
            self.over[request] = event
            if not event.damaged:
                self.check_whole(request)
        elif isinstance(event, Failed):
            raise AssertionError(event)  # noqa: TRY004
        elif isinstance(event, Cancelled):
            self.over[request] = event
        else:
            assert isinstance(event, TensorOpened)

    def check_whole(self, request):
        name, tier = self.wanted[request]
        for tensor, wanted in TENSORS[name].items():
            best = "full" if tier == "full" and wanted.residual is not None else "anchor"
            assert same(self.received[request].encoded(tensor, best), wanted)

    @invariant()
    def memory_is_bounded(self):
        if not hasattr(self, "receiver"):
            return
        for window in self.receiver._windows.values():
            assert 0 <= window.held <= WINDOW
        kept = sum(len(reader._rest) for reader in self.receiver._readers.values())
        assert kept <= self.lanes * (HEADER_SIZE + max(256, self.receiver.limits.max_header))

    def teardown(self):
        """Without further faults, everything that was not cancelled arrives."""
        if not hasattr(self, "receiver"):
            return
        self.lose()
        for name, count in PAGES.items():
            self.made[name] = self.sources[name].made = count
        for _ in range(2000):
            self.take(1000)
            if self.over.keys() == self.wanted.keys():
                break
            for lane in range(self.lanes):
                self.answer(lane, 1 << 20)
            for lane in range(self.lanes):
                self.send(lane, 3000)
                self.arrive(lane, 1 << 20)
        self.take(1000)
        assert self.over.keys() == self.wanted.keys()
        for window in self.receiver._windows.values():
            assert window.held == 0


TestTransfers = Transfers.TestCase
TestTransfers.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
