"""Records from strangers: a typed error or none, and never more memory than the limits allow."""

import struct
import tracemalloc

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import stream
from lynxq.errors import LynxqError, ParamsError, PeerError, ProtocolError
from lynxq.format.header import Header
from lynxq.stream import EncodedSource, Failed, ReceiverLimits, SenderLimits, Timeouts
from lynxq.stream.messages import Hello, Role
from lynxq.stream.records import FIELDS, HEADER_SIZE, Record, RecordReader, Type
from tests.stream_tools import KEYS, Pair, encoded, forwards, records, wide

U32, U64 = (st.integers(0, 2**bits - 1) for bits in (32, 64))
SESSION = b"s" * 16
TO_RECEIVER = Hello(role=Role.SENDER, session=SESSION, max_requests=9).record().pack()
TO_SENDER = (
    Hello(role=Role.RECEIVER, session=SESSION, max_data=256, anchor_limit=1 << 20, residual_limit=1 << 20)
    .record()
    .pack()
)


def sealed(head, body=b""):
    """A record whose header has these 56 bytes, and right checksums."""
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + body


@st.composite
def any_record(draw, small=True):
    """A record with right checksums and otherwise anything in it, mostly near to what is allowed."""
    number = st.integers(0, 4) if small else U32
    type_ = draw(st.sampled_from([*Type, 0, 99, 0x8000]))
    body = draw(st.binary(max_size=80))
    fields = {name: draw(number) for name in ("kind", "request", "tensor", "page", "offset", "total")}
    if draw(st.booleans()) and type_ in FIELDS:
        fields = {name: value for name, value in fields.items() if name in FIELDS[type_]}
        body = body if "body" in FIELDS[type_] else b""
    fields["kind"] = min(fields.get("kind", 0), 65535)
    return Record(int(type_), **fields, body=body).pack()


# --- records -----------------------------------------------------------------------------------------


@given(st.lists(any_record(), max_size=6), st.data())
def test_records_do_not_depend_on_how_they_are_cut(parts, data):
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))

    def read(pieces):
        reader, found = RecordReader(100, 4096), []
        try:
            for piece in pieces:
                for record in reader.feed(piece):
                    found.append(record._replace(body=bytes(record.body)))  # noqa: PERF401 - those before an error count
        except ProtocolError as error:
            return found, str(error)
        return found, None

    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read(pieces) == read([whole]) == read([whole[i : i + 1] for i in range(len(whole))])


@given(st.integers(0, 1), U32, U32, U32, U64, U64)
def test_records_round_trip(kind, request, tensor, page, offset, total):
    record = Record(Type.DATA, kind, request, tensor, page, offset, total, b"payload")
    (found,) = records(record.pack())
    assert found._replace(body=bytes(found.body)) == record


@pytest.mark.parametrize("at", range(HEADER_SIZE))
def test_every_bit_of_a_header_is_checked(at):
    data = Record(Type.DATA, 1, 2, 3, 4, 5, 6, b"body").pack()
    for bit in range(8):
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        with pytest.raises(ProtocolError):
            records(bytes(changed) + bytes(1 << 16))


@pytest.mark.parametrize("type_", [each for each in Type if each is not Type.DATA and "body" in FIELDS[each]])
def test_bodies_are_checked(type_):
    data = bytearray(Record(type_, body=b"body").pack())
    data[-1] ^= 1
    with pytest.raises(ProtocolError, match="body"):
        records(bytes(data))


@pytest.mark.parametrize("type_", list(Type))
@pytest.mark.parametrize("field", ["kind", "request", "tensor", "page", "offset", "total", "body"])
def test_fields_that_a_type_does_not_use_are_zero(type_, field):
    record = Record(type_, **{field: b"x" if field == "body" else 1})
    if field in FIELDS[type_]:
        records(record.pack())
        return
    with pytest.raises(ProtocolError):
        records(record.pack())


def test_reserved_fields_and_sizes():
    head = struct.pack("<4sHHIIIIQQQQ", b"LXWR", Type.PING, 0, 0, 0, 0, 0, 0, 0, xxhash.xxh3_64_intdigest(b""), 0)
    assert records(sealed(head)) == [Record(Type.PING)]
    with pytest.raises(ProtocolError, match="reserved"):
        records(sealed(head[:48] + b"\1" + head[49:]))
    for type_, cap in ((Type.DATA, 100), (Type.END, 4096), (0x8000, 4096)):
        for size in (cap, cap + 1, 2**32 - 1):
            big = struct.pack("<4sHHIIIIQQQQ", b"LXWR", type_, 0, 0, 0, 0, size, 0, 0, 0, 0)
            reader = RecordReader(100, 4096)
            if size == cap:
                assert list(reader.feed(sealed(big))) == []
                continue
            with pytest.raises(ProtocolError, match=f"at most {cap} bytes"):
                list(reader.feed(sealed(big)))


# --- anything for a machine --------------------------------------------------------------------------


def feed(machine, data):
    """Whether a machine takes bytes; anything but its own errors gets through."""
    try:
        for event in machine.receive(data) or ():
            if isinstance(event, stream.Requested):
                machine.open(event.request, EncodedSource(encoded()))
    except (ProtocolError, PeerError):
        assert len(records(machine.data_to_send())) == 1  # it says goodbye
        return False
    return True


@given(st.binary(max_size=400))
def test_any_bytes(data):
    for machine in (stream.Sender(), receiver()):
        feed(machine, data)


def receiver(limits=None):
    found = stream.Receiver(limits)
    found.connect(session=SESSION)
    return found


@given(st.lists(any_record() | any_record(small=False), max_size=12))
def test_any_records_for_a_sender(parts):
    machine = stream.Sender()
    machine.receive(TO_SENDER)
    for part in parts:
        if not feed(machine, part):
            return
        machine.data_to_send(5000)


@given(st.lists(any_record() | any_record(small=False), max_size=12))
def test_any_records_for_a_receiver(parts):
    machine = receiver()
    machine.request("p")
    machine.receive(TO_RECEIVER + Record(Type.OPEN, request=1, body=EncodedSource(encoded()).header.pack()).pack())
    for part in parts:
        if not feed(machine, part):
            return
        machine.data_to_send()
        while machine.next_event() is not None:
            pass


CONVERSATION = {}


def conversation(side):
    """All that one side of a transfer with a resumption says."""
    if side in CONVERSATION:
        return CONVERSATION[side]
    pair = Pair({"p": EncodedSource(encoded())}, limits=ReceiverLimits(max_data=256))
    pair.ask("p")
    said = {"sender": [b""], "receiver": [b""]}
    receive = pair.sender.receive

    def overhear(data, lane=0):
        said["receiver"].append(bytes(data))
        return receive(data, lane)

    pair.sender.receive = overhear
    pair.run(lambda data, _: said["sender"].append(data) or data)
    CONVERSATION.update({key: b"".join(value) for key, value in said.items()})
    return CONVERSATION[side]


@given(st.data(), st.sampled_from(["sender", "receiver"]))
def test_a_sound_conversation_in_which_records_are_changed_and_moved(data, side):
    """Every record has right checksums; they come in another order, several times, or with another field."""
    parts = forwards(conversation(side))
    found = []
    for part in data.draw(st.lists(st.sampled_from(range(len(parts))), max_size=30)):
        (record,) = records(parts[part])
        if data.draw(st.integers(0, 3)) == 0:
            field = data.draw(st.sampled_from(["request", "tensor", "page", "offset", "total"]))
            record = record._replace(**{field: data.draw(st.sampled_from([0, 1, 2, 2**31]))})
        found.append(record.pack())
    machine = stream.Sender() if side == "receiver" else receiver()
    if side == "sender":
        machine.request("p")
    if data.draw(st.booleans()):
        found = [*parts[: data.draw(st.integers(1, len(parts)))], *found]
    if side == "sender" and found:
        found[0] = TO_RECEIVER
    for part in found:
        if not feed(machine, part):
            return
        machine.data_to_send()


# --- memory ------------------------------------------------------------------------------------------


def peak(function):
    """Most bytes that were allocated at once during a call."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


HUGE = {
    "tokens": (2**30, 8),
    "channels": (8, 2**30),
    "many pages": (2**27, 2**4),
}


@pytest.mark.parametrize("shape", HUGE.values(), ids=HUGE)
def test_no_memory_on_the_word_of_a_header(shape):
    layout = lynxq.Layout.of(KEYS, shape, "float32", token_axis=0)
    header = Header.of({}, {"k": layout}, ("anchor", "residual"))
    machine = receiver(ReceiverLimits(max_request_bytes=1 << 50, anchor_window=1 << 22, residual_window=1 << 22))
    machine.request("p")
    machine.receive(TO_RECEIVER)
    opening = Record(Type.OPEN, request=1, body=header.pack()).pack()

    def go():
        machine.receive(opening)
        while (event := machine.next_event()) is not None:
            if isinstance(event, stream.RequestOpened):
                stream.Received(event.header)

    assert peak(go) < 400_000


def test_a_request_of_more_than_the_limit_is_not_taken():
    layout = lynxq.Layout.of(KEYS, (2**34, 8), "float32", token_axis=0)
    machine = receiver()
    machine.request("p")
    machine.receive(TO_RECEIVER)
    header = Header.of({}, {"k": layout}, ("anchor",))
    machine.receive(Record(Type.OPEN, request=1, body=header.pack()).pack())
    assert isinstance(machine.next_event(), Failed)


def test_many_tensors_are_refused_before_they_are_read():
    machine = receiver(ReceiverLimits(max_tensors=10))
    machine.request("p")
    machine.receive(TO_RECEIVER)
    header = Header.of({}, {str(i): wide(0).layout for i in range(2000)}, ("anchor",))
    opening = Record(Type.OPEN, request=1, body=header.pack()).pack()
    assert peak(lambda: machine.receive(opening)) < 100_000
    assert "at most 10 tensors" in machine.next_event().reason


def test_frames_that_never_end_hold_no_more_than_the_window():
    tensors = {"k": wide(16 * 64)}
    machine = receiver(ReceiverLimits(anchor_window=20_000, residual_window=20_000))
    machine.request("p")
    machine.receive(TO_RECEIVER)
    machine.receive(Record(Type.OPEN, request=1, body=EncodedSource(tensors).header.pack()).pack())
    total = 64 + tensors["k"].layout.page_size("anchor", 1)

    def go():
        for page in range(1, 40):
            part = Record(Type.DATA, 0, 1, 0, page, 0, total, bytes(10))
            if page * total <= 20_000:
                machine.receive(part.pack())
                continue
            with pytest.raises(ProtocolError, match="credit"):
                machine.receive(part.pack())
            return

    assert peak(go) < 60_000


def test_a_record_that_never_ends_holds_no_more_than_its_cap():
    machine = receiver()
    machine.receive(TO_RECEIVER)
    head = struct.pack("<4sHHIIIIQQQQ", b"LXWR", Type.OPEN, 0, 1, 0, 0, 1 << 20, 0, 0, 0, 0)
    machine.receive(sealed(head))

    def go():
        for _ in range((1 << 20) // 1000):
            machine.receive(bytes(1000))

    assert peak(go) < 3 << 20


def test_damage_without_end_costs_the_one_who_causes_it():
    """Every frame is asked for again a few times and then given up; the answers do not pile up."""
    pair = Pair({"p": EncodedSource(encoded())})
    pair.ask("p")

    def change(data, lane):
        return b"".join(
            record._replace(body=bytes(len(record.body))).pack() if record.type == Type.DATA else record.pack()
            for record in records(data)
        )

    pair.run(change)
    assert pair.events[-1].damaged == 12
    assert len(pair.of(stream.Retried)) == 6 * 3


def test_checksums_of_pages_that_do_not_exist_are_of_no_use():
    sender = stream.Sender(SenderLimits(max_checksums=1000))
    source = EncodedSource(encoded())
    sender.receive(TO_SENDER + Record(Type.REQUEST, 1, 1, total=source.header.identity, body=b"p").pack())
    sender.receive(Record(Type.HAVE, 1, 1, 77, 2**32 - 5, body=bytes(80)).pack())
    sender.open(1, source)
    sender.receive(Record(Type.ACCEPT, request=1).pack())
    kinds = [record.kind for record in records(sender.data_to_send(1 << 20)) if record.type == Type.DATA]
    assert kinds.count(1) > 6


@pytest.mark.parametrize(
    "make",
    [
        lambda: SenderLimits(max_requests=0),
        lambda: SenderLimits(max_control=100),
        lambda: ReceiverLimits(max_data=100),
        lambda: ReceiverLimits(max_header=100),
        lambda: ReceiverLimits(max_header=1 << 30),
        lambda: ReceiverLimits(retries=-1),
        lambda: ReceiverLimits(anchor_window=1.5),
        lambda: Timeouts(silence=0),
        lambda: Timeouts(keepalive=float("inf")),
        lambda: stream.Receiver().connect(3),
        lambda: stream.Receiver().connect(session=b"short"),
        lambda: stream.Receiver().request("p", "residual"),
    ],
)
def test_limits_are_checked(make):
    with pytest.raises(ParamsError):
        make()


def test_errors_are_ours():
    assert issubclass(ProtocolError, LynxqError)
