"""What TCP transfers ask of sockets: TLS, a rate, marks of packets, and little that waits in the kernel."""

import asyncio
import socket
import ssl
import time

import pytest

from lynxq.errors import ConnectionLostError, ParamsError
from lynxq.stream import EncodedSource, tcp
from lynxq.stream.messages import Hello, Role
from lynxq.stream.records import Record, RecordReader, Type
from tests.stream_tools import encoded, source, wide
from tests.tcp_tools import LOCAL, QUICK, check, connect, run


def test_tls():
    trustme = pytest.importorskip("trustme")

    async def main():
        authority = trustme.CA()
        ours, theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
        authority.issue_cert("localhost").configure_cert(ours)
        authority.configure_trust(theirs)
        async with tcp.serve({"p": source()}, ssl=ours) as server:
            for lanes in (1, 2):
                async with tcp.connect("localhost", server.port, ssl=theirs, lanes=lanes) as client:
                    transfer = await client.request("p")
                    await transfer.done()
                    check(transfer, encoded())
            # Who does not trust the authority, or speaks without TLS, gets nothing.
            async with tcp.connect("localhost", server.port, ssl=ssl.create_default_context(), attempts=1) as client:
                with pytest.raises(ConnectionLostError, match="CERTIFICATE_VERIFY_FAILED"):
                    await client.request("p")
            async with connect(server, attempts=1, timeouts=QUICK) as client:
                with pytest.raises(ConnectionLostError):
                    await client.request("p")

    run(main)


def test_a_token_bucket_limits_the_rate():
    """Sums of virtual time; nothing here depends on the speed of the machine but a lower bound."""
    now = [0.0]
    bucket = tcp.TokenBucket(1000.0, burst=50, clock=lambda: now[0])
    sent = 0
    for _ in range(100):
        now[0] += bucket.delay()
        assert bucket.delay() == pytest.approx(0, abs=1e-9)
        bucket.spend(30)
        sent += 30
        assert sent - 30 <= 50 + 1000 * now[0] + 1e-6
    assert now[0] == pytest.approx((sent - 50 - 30) / 1000, abs=0.031)
    now[0] += 1000
    assert bucket.delay() == 0
    bucket.spend(80)  # a pause gives no more than the burst
    assert bucket.delay() == pytest.approx(0.03)
    assert tcp.TokenBucket(1.0).portion == 1024
    for call in (lambda: tcp.TokenBucket(0), lambda: tcp.TokenBucket(1, burst=-1)):
        with pytest.raises(ParamsError):
            call()

    async def main():
        tensors = {"k": wide(16 * 30)}
        size = EncodedSource(tensors).header.segment_size
        async with (
            tcp.serve({"p": EncodedSource(tensors)}, bucket=tcp.TokenBucket(size * 4)) as server,
            connect(server, lanes=2) as client,
        ):
            begin = time.monotonic()
            transfer = await client.request("p")
            await transfer.done()
            assert time.monotonic() - begin > 0.2  # a quarter of a second, but for the last portion
            check(transfer, tensors)

    run(main)


def test_sockets_are_marked():
    marks = {}
    mark = tcp.client.mark

    def note(sock, code_point):
        result = mark(sock, code_point)
        marks[code_point] = sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) if result else None
        return result

    async def main():
        tcp.client.mark = tcp.server.mark = note
        try:
            async with (
                tcp.serve({"p": source()}, marks=(10, 8)) as server,
                connect(server, lanes=2, marks=(34, 1)) as client,
            ):
                await (await client.request("p")).done()
        finally:
            tcp.client.mark = tcp.server.mark = mark

    run(main)
    assert marks == {10: 40, 8: 32, 34: 136, 1: 4}


def test_little_waits_in_the_kernel():
    """An anchor that comes late overtakes what of residuals is not with the kernel yet."""

    async def main():
        size = 1 << 24
        big = {"k": wide(16 * 40, channels=8000)}
        assert EncodedSource(big).header.segment_size < size
        async with tcp.serve({"big": EncodedSource(big), "p": source()}) as server:
            reader, writer = await asyncio.open_connection(LOCAL, server.port, limit=1024)
            try:
                hello = Hello(
                    role=Role.RECEIVER, session=b"s" * 16, max_data=4096, max_control=1 << 20,
                    anchor_limit=size, residual_limit=size,
                )  # fmt: skip
                writer.write(hello.record().pack())
                for request, name in ((1, b"big"), (2, b"p")):
                    writer.write(Record(Type.REQUEST, 1, request, body=name).pack())
                    writer.write(Record(Type.ACCEPT, request=request).pack())
                    if request == 1:
                        await asyncio.sleep(0.2)  # nothing is read: anchors and residuals fill what there is to fill
                records, found = RecordReader(4096, 1 << 20), []
                while not any(record.request == 2 and record.type == Type.DATA for record in found):
                    found += records.feed(await reader.read(1 << 16))
                kinds = [record.kind for record in found if record.type == Type.DATA and record.request == 1]
                assert len(kinds) * 4096 < size // 2
            finally:
                writer.close()
                await writer.wait_closed()

    run(main)
