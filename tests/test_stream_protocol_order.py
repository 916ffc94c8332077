"""The order of the protocol: anchors before residuals, and requests that share in equal parts."""

from lynxq.stream import AnchorPage, EncodedSource, ReceiverLimits, ResidualPage
from lynxq.stream.records import HEADER_SIZE, Type
from tests.stream_tools import SMALL, Pair, coded, data_kinds, encoded, records, source, wide


def test_no_residual_byte_leaves_while_an_anchor_can():
    """Across tensors and requests, also when a request comes while residuals are on their way."""
    pair = Pair({"a": source(1), "b": source(2)}, limits=SMALL)
    pair.ask("a")
    pair.to_sender()
    sent = pair.from_sender(1 << 20)
    assert set(data_kinds(sent)) == {0}  # residuals wait until the header was accepted
    pair.receiver.receive(sent)
    pair.to_sender()
    some = pair.from_sender(2000)
    assert data_kinds(some) == [1] * len(data_kinds(some))
    pair.receiver.receive(some)
    pair.ask("b")
    pair.to_sender()
    rest = pair.from_sender(1 << 20)
    kinds = data_kinds(rest)
    assert kinds == sorted(kinds)
    assert kinds.count(0) * 2 > 10
    pair.receiver.receive(rest)
    pair.run()
    pair.check(1, encoded(1))
    pair.check(2, encoded(2))


def test_residuals_wait_on_their_own_connection():
    pair = Pair({"p": source()}, lanes=2, limits=SMALL)
    pair.ask("p")
    pair.accept()
    assert data_kinds(pair.from_sender(1 << 20, 1)) == []  # anchors wait on the other one
    anchors = pair.from_sender(1 << 20, 0)
    assert set(data_kinds(anchors)) == {0}
    residuals = pair.from_sender(1 << 20, 1)
    assert set(data_kinds(residuals)) == {1}
    # They arrive first, and are handed out last.
    pair.receiver.receive(residuals, 1)
    assert not [event for event in pair.take() if isinstance(event, ResidualPage)]
    pair.receiver.receive(anchors, 0)
    kinds = [type(event) for event in pair.take() if isinstance(event, AnchorPage | ResidualPage)]
    assert kinds == [AnchorPage] * 6 + [ResidualPage] * 6
    pair.run()
    pair.check(1, encoded())


def test_anchors_are_handed_out_first_whatever_arrived_first():
    pair = Pair({"a": source(1), "b": source(2)})
    pair.ask("a")
    pair.to_sender()
    pair.receiver.receive(pair.from_sender(1 << 20))
    pair.to_sender()
    pair.receiver.receive(pair.from_sender(1 << 20))  # nothing was taken yet, and the residuals of a are here
    pair.ask("b")
    pair.to_sender()
    pair.receiver.receive(pair.from_sender(1 << 20))
    kinds = [(event.request, type(event)) for event in pair.take() if isinstance(event, AnchorPage | ResidualPage)]
    assert [kind for _, kind in kinds] == [AnchorPage] * 12 + [ResidualPage] * 6
    assert {request for request, _ in kinds[:12]} == {1, 2}


def sent_bytes(data):
    found = {}
    for record in records(data):
        if record.type == Type.DATA:
            found[record.request] = found.get(record.request, 0) + HEADER_SIZE + len(record.body)
    return found


def test_requests_share_in_equal_parts():
    """Counted in bytes, although the frames of one are many times smaller than those of the other."""
    small = EncodedSource({"k": coded(8 * 200)})
    large = EncodedSource({"k": wide(16 * 20, channels=400)})
    pair = Pair({"small": small, "large": large}, limits=ReceiverLimits(max_data=1024))
    pair.ask("small")
    pair.ask("large")
    pair.to_sender()
    served = dict.fromkeys((1, 2), 0)
    opened = set()
    while len(opened) < 2:
        opened |= {record.request for record in records(pair.from_sender(1)) if record.type == Type.OPEN}
    for _ in range(40):
        for request, size in sent_bytes(pair.from_sender(1)).items():
            served[request] += size
        assert abs(served[1] - served[2]) <= 1024 + HEADER_SIZE
    assert min(served.values()) > 5000


def test_a_late_request_has_no_claim_to_what_it_missed():
    pair = Pair({"a": EncodedSource({"k": wide(16 * 60)}), "b": EncodedSource({"k": wide(16 * 60, 5)})}, limits=SMALL)
    pair.ask("a")
    pair.to_sender()
    pair.from_sender(30000)
    pair.ask("b")
    pair.to_sender()
    served = sent_bytes(pair.from_sender(10000))
    assert served[1] > 4000
    assert served[2] > 4000
