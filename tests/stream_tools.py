"""What the tests of transfers share: small tensors, two machines and the bytes between them."""

import lynxq
from lynxq import Params, stream, testing
from lynxq.stream import AnchorPage, EncodedSource, Received, ReceiverLimits, RequestOpened, ResidualPage
from lynxq.stream.records import HEADER_SIZE, RecordReader, Type
from tests.containers import KEYS, VALUES, coded

#: Frames are larger than the smallest data record, so they go in parts.
WIDE = Params(page=16, range_size=16, chunk=8, sink_tokens=3)

#: Limits of a receiver to which such frames come in many parts.
SMALL = ReceiverLimits(max_data=256)

__all__ = [
    "KEYS", "SMALL", "VALUES", "WIDE", "Pair", "coded", "damage", "data_kinds", "encoded", "forwards", "records",
    "same", "sent_sizes", "source", "wide",
]  # fmt: skip


def wide(tokens=50, seed=0, channels=40):
    """An encoded tensor with frames of more than a kilobyte."""
    x = testing.contents("normal", (tokens, channels), "float32", seed)
    return lynxq.encode(x, WIDE, token_axis=0)


def encoded(seed=0):
    """Three tensors: of four large pages, of two small ones, and of none."""
    return {"k": wide(50, seed), "v": coded(9, seed + 1, dtype="float16"), "empty": coded(0)}


def source(seed=0):
    """A source of these tensors, with metadata."""
    return EncodedSource(encoded(seed), metadata={"model": "toy"})


def same(found, wanted):
    """Whether two `Encoded` have the same layout and the same bytes of both streams."""
    assert found.layout == wanted.layout
    assert found.anchor.tobytes() == wanted.anchor.tobytes()
    if found.residual is not None:
        assert found.residual.tobytes() == wanted.residual.tobytes()
    return True


def records(data):
    """The records of a direction of a connection, greeting included."""
    return list(RecordReader(1 << 24, 1 << 26).feed(data))


def forwards(data):
    """The same, cut into the bytes of single records."""
    found, position = [], 0
    for record in records(data):
        end = position + HEADER_SIZE + len(record.body)
        found.append(data[position:end])
        position = end
    assert position == len(data)
    return found


class Pair:
    """A sender and a receiver, and what the receiver got so far."""

    def __init__(self, sources, *, lanes=1, limits=None, sender_limits=None, make=Received):
        self.sources = sources
        self.make = make
        self.sender = stream.Sender(sender_limits)
        self.receiver = stream.Receiver(limits)
        self.sender_limits = sender_limits
        self.lanes = lanes
        self.events = []
        self.sender_events = []
        self.received = {}
        self.to_receiver = {0: bytearray(), 1: bytearray()}
        self.receiver.connect(lanes)

    def ask(self, name, tier="full"):
        return self.receiver.request(name, tier)

    def to_sender(self):
        """What the receiver has to say goes to the sender; requests are answered at once."""
        for lane in range(self.lanes):
            data = self.receiver.data_to_send(lane)
            if data:
                self.handle(self.sender.receive(data, lane))

    def handle(self, events):
        for event in events:
            self.sender_events.append(event)
            if isinstance(event, stream.Requested):
                if event.name in self.sources:
                    self.sender.open(event.request, self.sources[event.name])
                else:
                    self.sender.refuse(event.request, stream.Code.UNKNOWN, "unknown")

    def from_sender(self, size=1, lane=0):
        """Bytes of the sender, not yet given to the receiver."""
        return self.sender.data_to_send(size, lane)

    def accept(self):
        """Go on until the sender knows that the header was accepted, so that everything can be sent."""
        self.to_sender()
        for lane, last in ((0, Type.OPEN), (1, Type.HELLO))[: self.lanes]:
            opening = self.from_sender(1, lane)
            while records(opening)[-1].type != last:
                opening += self.from_sender(1, lane)
            self.receiver.receive(opening, lane)
        self.to_sender()

    def take(self):
        """All events that wait."""
        fresh = []
        while (event := self.receiver.next_event()) is not None:
            fresh.append(event)
            if isinstance(event, RequestOpened):
                self.received[event.request] = self.make(event.header)
            elif isinstance(event, AnchorPage | ResidualPage):
                self.received[event.request].add(event)
        self.events += fresh
        return fresh

    def run(self, change=lambda data, _: data, size=1):
        """Carry bytes until there are none; `change` may damage each portion."""
        moved = True
        while moved:
            moved = bool(self.take())
            self.to_sender()
            for lane in range(self.lanes):
                while data := self.from_sender(size, lane):
                    moved = True
                    self.receiver.receive(change(data, lane), lane)
                    self.take()
                    self.to_sender()
        self.sender_events += self.sender.ended()
        assert all(window.held == 0 for window in self.receiver._windows.values())  # everything was taken or dropped

    def reconnect(self):
        """All connections are lost, and made again to a sender that knows nothing."""
        self.sender.lost()
        self.sender = stream.Sender(self.sender_limits)
        self.receiver.disconnect()
        self.receiver.connect(self.lanes)

    def check(self, request, tensors, tier="full"):
        """Everything of a request is here, and right."""
        for name, wanted in tensors.items():
            assert same(self.received[request].encoded(name, tier), wanted)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def data_kinds(data):
    """Stream kinds of the data records, in order."""
    return [record.kind for record in records(data) if record.type == Type.DATA]


def sent_sizes(data):
    """Bytes of the bodies of data records, by stream kind."""
    sizes = {0: 0, 1: 0}
    for record in records(data):
        if record.type == Type.DATA:
            sizes[record.kind] += len(record.body)
    return sizes


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
