"""The conversation that docs/wire.md ends with: ``python docs/examples/wire_example.py`` prints its hex dump.

The bytes depend on nothing but this script, the format and the wire.
"""

from __future__ import annotations

import numpy as np

import lynxq
from lynxq.stream import EncodedSource, Receiver, ReceiverLimits, Requested, Sender

#: One page of four tokens and two channels, float16.
VALUES = ((1.0, -2.0), (0.5, 2.0), (-1.0, 0.25), (0.0, 1.5))
PARAMS = lynxq.Params(page=8, range_size=8, chunk=4, sink_tokens=0)
NAME = "prompt-000000001"
SESSION = bytes(range(16))
LIMITS = ReceiverLimits(anchor_window=4096, residual_window=2048, max_data=4096, max_header=4096)


def encoded() -> lynxq.Encoded:
    """The tensor that is sent."""
    return lynxq.encode(np.array(VALUES, np.float16), PARAMS, token_axis=0)


def conversation() -> list[tuple[str, bytes]]:
    """What the two sides say, in turns: "R" for the receiver, "S" for the sender."""
    sender, receiver = Sender(), Receiver(LIMITS)
    receiver.connect(session=SESSION)
    receiver.request(NAME)
    turns: list[tuple[str, bytes]] = []
    for closing in (False, True):
        if closing:
            receiver.close()
        while data := receiver.data_to_send():
            turns.append(("R", data))
            for event in sender.receive(data):
                if isinstance(event, Requested):
                    sender.open(event.request, EncodedSource({"k": encoded()}))
            while data := sender.data_to_send(1 << 20):
                turns.append(("S", data))
                receiver.receive(data)
            while receiver.next_event() is not None:
                pass
    return turns


def hex_dump(turns: list[tuple[str, bytes]]) -> str:
    """Who speaks, offset in what that side says, and 16 bytes a line; no line is left out."""
    offsets = {"R": 0, "S": 0}
    rows = []
    for side, data in turns:
        for begin in range(0, len(data), 16):
            rows.append(f"{side} {offsets[side]:04x}  {data[begin : begin + 16].hex(' ')}")
            offsets[side] += len(data[begin : begin + 16])
    return "\n".join(rows)


if __name__ == "__main__":
    print(hex_dump(conversation()))
