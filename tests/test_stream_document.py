"""docs/transport.md: its examples run, and the numbers that it quotes are those of the code."""

import asyncio
import re
from dataclasses import fields
from pathlib import Path

import numpy as np

import lynxq
from lynxq import stream
from lynxq.stream import ReceiverLimits, SenderLimits, Timeouts, tcp
from lynxq.stream.tcp import sockets, wire
from tests.test_format_document import tables

TEXT = (Path(__file__).parents[1] / "docs" / "transport.md").read_text(encoding="utf-8")
FIRST, RECORD, SLOW = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def test_the_first_example_runs():
    found = {}
    exec(FIRST, found)  # noqa: S102 - our own documentation
    assert found["cache"].shape == (1, 8, 2048, 64)


def test_the_example_of_a_recording_runs(tmp_path):
    found = {"stream": stream}
    exec(RECORD, found)  # noqa: S102 - our own documentation
    encoded = {"k": lynxq.encode(np.ones((600, 4), np.float32), token_axis=0)}
    path = tmp_path / "kv.lynx"

    async def main():
        async with (
            tcp.serve({"prompt-1": stream.EncodedSource(encoded)}) as server,
            tcp.connect("127.0.0.1", server.port) as client,
        ):
            await found["record"](client, path)

    asyncio.run(main())
    assert lynxq.load(path)["k"].tobytes() == lynxq.decode_full(encoded["k"]).tobytes()


def test_the_example_of_a_bucket_runs():
    found = {"tcp": tcp}
    exec(SLOW, found)  # noqa: S102 - our own documentation
    assert found["bucket"].rate == 31_250_000


def number(text):
    """A number as the page writes it: with a unit, or as a power."""
    match = re.fullmatch(r"(\d+)(?:\^(\d+))?(?: (GiB|MiB|s))?(?: each)?", text.strip())
    value = int(match.group(1)) ** int(match.group(2) or 1)
    return value * {"GiB": 1 << 30, "MiB": 1 << 20}.get(match.group(3), 1)


def test_the_limits_are_those_of_the_code():
    defaults = {}
    for limits in (ReceiverLimits(), SenderLimits()):
        defaults[type(limits).__name__] = {each.name: getattr(limits, each.name) for each in fields(limits)}
    (rows,) = tables(TEXT, "Limits and trust")
    checked = 0
    for row in rows:
        name, values = row["Limit"], row["Default"].split(",")
        if "." not in name:
            continue
        group, first, *others = re.findall(r"\w+", name)
        for place, field in enumerate([first, *others]):
            assert defaults[group][field] == number(values[min(place, len(values) - 1)]), field
            checked += 1
    assert checked == 9
    assert {re.findall(r"\((.*)\)", row["Limit"])[0]: int(row["Default"]) for row in rows if "(" in row["Limit"]} == {
        "max_connections=": 256
    }
    text = next(row["Default"] for row in rows if row["Limit"] == "Timeouts")
    assert dict(re.findall(r"(\w+) (\d+) s", text)) == {
        name: f"{getattr(Timeouts(), name):g}" for name in ("greeting", "silence", "stall")
    }


def test_the_sizes_are_those_of_the_code():
    words = " ".join(TEXT.split())
    assert f"writes {wire.PORTION >> 10} KiB at a time" in words
    assert f"no more than {sockets.UNSENT >> 10} KiB" in words
    assert f"`max_data`, {ReceiverLimits().max_data >> 10} KiB by default" in words
    assert sockets.MARKS == (34, 1)  # AF41 and LE
