"""Split-stream transport: anchors before residuals, over anything that carries bytes. Protocol: docs/wire.md.

`Sender` and `Receiver` are state machines without I/O; :mod:`lynxq.stream.tcp` runs them over TCP.
"""

from lynxq.stream.encoding import EncodingSource, encoding
from lynxq.stream.events import (
    AnchorPage,
    AnchorReady,
    Cancelled,
    Closed,
    Damaged,
    Delivered,
    Done,
    Ended,
    Event,
    Failed,
    Requested,
    RequestOpened,
    ResidualPage,
    ResidualReady,
    Retried,
    TensorOpened,
)
from lynxq.stream.limits import ReceiverLimits, SenderLimits, Timeouts
from lynxq.stream.messages import Code
from lynxq.stream.received import Received
from lynxq.stream.receiver import Receiver
from lynxq.stream.recorder import Recorder
from lynxq.stream.sender import Sender
from lynxq.stream.sources import ContainerSource, EncodedSource, Frame, Source

__all__ = [
    "AnchorPage",
    "AnchorReady",
    "Cancelled",
    "Closed",
    "Code",
    "ContainerSource",
    "Damaged",
    "Delivered",
    "Done",
    "EncodedSource",
    "EncodingSource",
    "Ended",
    "Event",
    "Failed",
    "Frame",
    "Received",
    "Receiver",
    "ReceiverLimits",
    "Recorder",
    "RequestOpened",
    "Requested",
    "ResidualPage",
    "ResidualReady",
    "Retried",
    "Sender",
    "SenderLimits",
    "Source",
    "TensorOpened",
    "Timeouts",
    "encoding",
]
