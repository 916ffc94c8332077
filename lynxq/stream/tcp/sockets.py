"""Options of sockets: a short queue in the kernel, so that priority is real, and marks for the network."""

from __future__ import annotations

import socket
from contextlib import suppress

from lynxq.arguments import integer, shown
from lynxq.errors import ParamsError

#: Bytes that may wait in the kernel without having been sent. What waits there cannot be overtaken by an anchor.
UNSENT = 1 << 17

#: Differentiated services code points of the two connections: AF41 for anchors, LE (RFC 8622) for residuals.
MARKS = (34, 1)


def keep_queue_short(sock: socket.socket) -> bool:
    """Let the kernel take only what it can send soon; returns whether it can be told so exactly.

    Linux and macOS limit the bytes that are not sent yet (TCP_NOTSENT_LOWAT), and leave those in flight alone. On other
    systems the whole send buffer is made small, which costs speed where bandwidth times round trip exceeds it.
    """
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, UNSENT)
            return True
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * UNSENT)
    return False


def code_points(marks: tuple[int, int]) -> tuple[int, int]:
    """Two code points; raises `ParamsError` for anything else."""
    if not isinstance(marks, tuple) or len(marks) != 2:
        raise ParamsError(f"marks must be two code points, got {shown(marks)}")
    first, second = (integer("a code point of marks", point, 0, 63, ParamsError) for point in marks)
    return first, second


def mark(sock: socket.socket, code_point: int) -> bool:
    """Mark the packets of a socket with a code point; returns whether the platform allows it."""
    # The two low bits of the octet belong to explicit congestion notification.
    level, option = (
        (socket.IPPROTO_IPV6, getattr(socket, "IPV6_TCLASS", None))
        if sock.family == socket.AF_INET6
        else (socket.IPPROTO_IP, getattr(socket, "IP_TOS", None))
    )
    if option is None:
        return False
    try:
        sock.setsockopt(level, option, code_point << 2)
    except OSError:
        return False
    return True
