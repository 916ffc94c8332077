"""What the protocol forbids to either side, and what a later version may add."""

import struct

import pytest

from lynxq import stream
from lynxq.errors import ProtocolError
from lynxq.format.frames import FrameHeader
from lynxq.stream import AnchorPage, Damaged, Done, EncodedSource, Failed, SenderLimits
from lynxq.stream.messages import Code, Hello, Role, reason_record
from lynxq.stream.records import Record, Type
from tests.stream_tools import Pair, coded, encoded, forwards, records, source

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
