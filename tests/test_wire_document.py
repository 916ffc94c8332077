"""docs/wire.md against the library: its hex dump, its tables of fields, types, codes and caps."""

import importlib.util
import re
import struct
from pathlib import Path

import pytest

import lynxq
from lynxq import stream
from lynxq.errors import ProtocolError
from lynxq.stream import AnchorPage, ResidualPage, messages, records
from lynxq.stream.messages import Code, Hello, Role
from lynxq.stream.records import FIELDS, MIN_CONTROL, MIN_DATA, Record, RecordReader, Type
from tests.test_format_document import fields_of, tables

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "wire.md").read_text(encoding="utf-8")
DUMP = re.findall(r"^([RS]) ([0-9a-f]{4})  ((?:[0-9a-f]{2} ){15}[0-9a-f]{2})  ; (\S.*)$", TEXT, re.MULTILINE)


def load_script():
    spec = importlib.util.spec_from_file_location("wire_example", DOCS / "examples" / "wire_example.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def said(side):
    return bytes.fromhex("".join(data for who, _, data, _ in DUMP if who == side))


def turns():
    """The dump as it goes back and forth."""
    found = []
    for who, _, data, _ in DUMP:
        if not found or found[-1][0] != who:
            found.append((who, b""))
        found[-1] = who, found[-1][1] + bytes.fromhex(data)
    return found


def read(side):
    return [each._replace(body=bytes(each.body)) for each in RecordReader(1 << 16, 1 << 16).feed(said(side))]


# --- the example -------------------------------------------------------------------------------------


def test_the_document_ends_with_the_dump():
    for side in "RS":
        offsets = [int(offset, 16) for who, offset, _, _ in DUMP if who == side]
        assert offsets == list(range(0, len(said(side)), 16))
    assert TEXT.rstrip().removesuffix("```").rstrip().splitlines()[-1].startswith("R 0200  ")


def test_the_library_says_the_dump():
    script = load_script()
    assert script.hex_dump(script.conversation()).splitlines() == [
        f"{who} {offset}  {data}" for who, offset, data, _ in DUMP
    ]
    assert b"".join(data for _, data in turns()) == b"".join(data for _, data in script.conversation())


def test_a_receiver_understands_the_dump():
    script = load_script()
    receiver = stream.Receiver(script.LIMITS)
    receiver.connect(session=script.SESSION)
    request = receiver.request(script.NAME)
    pages, last = [], None
    receiver.data_to_send()
    for who, data in turns():
        if who == "S":
            receiver.receive(data)
        while (event := receiver.next_event()) is not None:
            if isinstance(event, stream.RequestOpened):
                received = stream.Received(event.header)
            elif isinstance(event, AnchorPage | ResidualPage):
                received.add(event)
                pages.append(type(event))
            last = event
    assert pages == [AnchorPage, ResidualPage]
    assert last == stream.Done(request, 0)
    wanted = script.encoded()
    assert received.encoded("k").anchor.tobytes() == wanted.anchor.tobytes()
    assert received.decode("k").tobytes() == lynxq.decode_full(wanted).tobytes()


def test_a_sender_understands_the_dump():
    script = load_script()
    sender = stream.Sender()
    events = []
    for who, data in turns():
        if who == "R":
            for event in sender.receive(data):
                events.append(event)
                if isinstance(event, stream.Requested):
                    sender.open(event.request, stream.EncodedSource({"k": script.encoded()}))
            while sender.data_to_send():
                pass
    assert [type(event).__name__ for event in events] == ["Requested", "Delivered", "Closed"]
    assert events[0].name == script.NAME


def test_the_dump_is_what_its_rows_say():
    """A row with the name of a record is where it begins; nothing else is."""
    named = [(who, int(offset, 16), text) for who, offset, _, text in DUMP if re.match(r"[A-Z]{3,}\b", text)]
    for side in "RS":
        position, found = 0, []
        for record in read(side):
            found.append((side, position, Type(record.type).name))
            position += records.HEADER_SIZE + len(record.body)
        assert [(who, offset, re.match("[A-Z]+", text).group()) for who, offset, text in named if who == side] == found
    for who, offset, _, text in DUMP:
        for number, value in re.findall(r"\b(total|size) (\d+)", text):
            assert struct.pack("<Q", int(value))[:4] in said(who)[int(offset, 16) : int(offset, 16) + 16], number


# --- field tables ------------------------------------------------------------------------------------


def field_table(heading):
    (rows,) = tables(TEXT, heading)
    return rows


@pytest.mark.parametrize(
    ("heading", "structures"),
    [
        ("2.1 Record header", [records._HEADER, records._CHECKSUM]),
        ("2.3 Body of a greeting", [messages._HELLO]),
    ],
)
def test_field_tables_are_those_of_the_code(heading, structures):
    rows = [(int(row["Offset"]), int(row["Size"]), row["Type"]) for row in field_table(heading)]
    assert rows == list(fields_of(*(structure.format for structure in structures)))
    assert sum(structure.size for structure in structures) == rows[-1][0] + rows[-1][1] == 64


def unpacked(heading, data):
    codes = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}
    found = {}
    for row in field_table(heading):
        code = codes.get(row["Type"], f"{row['Size']}s")
        (found[row["Field"]],) = struct.unpack_from(f"<{code}", data, int(row["Offset"]))
    return found


def test_field_names_are_those_of_the_code():
    record = Record(Type.DATA, 1, 2, 3, 4, 5, 6, b"1234567")
    found = unpacked("2.1 Record header", record.pack())
    assert found["magic"] == records.MAGIC
    assert field_table("2.1 Record header")[0]["Range"].startswith(records.MAGIC.hex(" "))
    assert found["size"] == 7
    for name in ("type", "kind", "request", "tensor", "page", "offset", "total"):
        assert found[name] == getattr(record, name)
    for role, others in (
        (Role.RECEIVER, {"max_data": 300, "anchor_limit": 13, "residual_limit": 14}),
        (Role.SENDER, {"max_requests": 12}),
    ):
        hello = Hello(role=role, session=b"s" * 16, lane=1, lanes=2, max_control=5000, minor=7, **others)
        found = unpacked("2.3 Body of a greeting", hello.record().body)
        assert found["major"] == messages.VERSION[0]
        for name, value in vars(hello).items():
            assert found[name] == value
        assert Hello.read(hello.record()) == hello


def test_ranges_of_a_greeting():
    good = {
        Role.RECEIVER: Hello(role=Role.RECEIVER, session=b"s" * 16, max_data=256).record().body,
        Role.SENDER: Hello(role=Role.SENDER, session=b"s" * 16).record().body,
    }
    for role, body in good.items():
        assert Hello.read(Record(Type.HELLO, body=body)).role == role
        for row in field_table("2.3 Body of a greeting"):
            changed = bytearray(body)
            begin, size = int(row["Offset"]), int(row["Size"])
            changed[begin : begin + size] = b"\xff" * size
            other = {Role.RECEIVER: "from a receiver", Role.SENDER: "from a sender"}[role]
            free = row["Range"] == "any" or row["Range"].startswith("at least") or (
                "0 from" in row["Range"] and other not in row["Range"]
            )  # fmt: skip
            if free:
                Hello.read(Record(Type.HELLO, body=bytes(changed)))
                continue
            with pytest.raises(ProtocolError):
                Hello.read(Record(Type.HELLO, body=bytes(changed)))
    small = bytearray(good[Role.RECEIVER])
    small[24:28] = struct.pack("<I", MIN_DATA - 1)
    with pytest.raises(ProtocolError):
        Hello.read(Record(Type.HELLO, body=bytes(small)))
    assert f"0 from a sender, else at least {MIN_DATA}" in TEXT


# --- types, codes, caps ------------------------------------------------------------------------------


def test_types_are_those_of_the_code():
    rows = field_table("2.2 Types")
    assert {(int(row["Type"]), row["Name"]) for row in rows} == {(each.value, each.name) for each in Type}
    for row in rows:
        fields = {field.strip() for field in row["Fields"].split(",") if field.strip()}
        assert fields == FIELDS[Type[row["Name"]]]
        senders = Type[row["Name"]] in stream.Receiver._HANDLERS
        receivers = Type[row["Name"]] in stream.Sender._HANDLERS
        if row["From"] == "both":
            assert not senders
            assert not receivers
        else:
            assert (senders or row["Name"] == "DATA", receivers) == (row["From"] == "sender", row["From"] == "receiver")
    assert f"{records.ANCILLARY:#x}" in TEXT


def test_codes_are_those_of_the_code():
    rows = field_table("2.4 Reasons")
    assert {(int(row["Code"]), row["Name"]) for row in rows} == {
        (each.value, each.name) for each in Code if each is not Code.CANCELLED
    }
    assert f"Code {Code.CANCELLED.value} is never sent" in TEXT


def test_caps_are_those_of_the_code():
    limits = {row["What"]: row["Limit"] for row in field_table("8. Limits")}
    assert int(limits["bytes of a name"]) == messages.MAX_NAME
    assert int(limits["bytes of a reason's text"]) == messages.MAX_REASON
    assert f"at least {MIN_CONTROL}" in TEXT
    assert f"bodies of at most {MIN_CONTROL} bytes" in " ".join(TEXT.split())
