"""Sources and sinks: encoding while sending, containers on either side, decoding as pages arrive."""

import io
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import Params, stream, testing
from lynxq.errors import (
    DTypeError,
    IncompleteError,
    MissingTensorError,
    NonFiniteError,
    ParamsError,
    ResidualMismatchError,
    ShapeError,
    SourceFailedError,
)
from lynxq.format.assembler import Assembler
from lynxq.stream import (
    AnchorPage,
    ContainerSource,
    EncodedSource,
    EncodingSource,
    Failed,
    Frame,
    Recorder,
    RequestOpened,
)
from lynxq.stream.messages import Code
from tests.containers import flipped, frame, stored
from tests.stream_tools import KEYS, WIDE, Pair, coded, damage, encoded, same, wide


def drain(source):
    """All frames of a source, in its order."""
    found = []
    for which in source.header.stream_names:
        for position in range(source.pages):
            while (place := source.place(position)) is None:
                pass
            while (each := source.frame(which, *place)) is None:
                pass
            found.append((which, *place, each.header.pack(), bytes(each.payload)))
    return found


# --- encoding while sending --------------------------------------------------------------------------


@given(testing.tensors(max_elements=400), testing.params(), st.integers(1, 5), st.integers(0, 9))
def test_encoding_page_by_page_gives_the_bytes_of_encoding_at_once(sample, params, step, first_token):
    whole = lynxq.encode(sample.x, params, token_axis=sample.token_axis, first_token=first_token)
    with stream.encoding(
        {"x": sample.x}, params, token_axis=sample.token_axis, first_token=first_token, step=step, ahead=10**6
    ) as source:
        assert sorted(drain(source)) == sorted(drain(EncodedSource({"x": whole})))
        assert source.header.pack() == EncodedSource({"x": whole}).header.pack()


def test_valid_tokens_and_heads():
    x = testing.contents("normal", (2, 70, 12), "float16")
    params = Params.values(page=16, range_size=4, chunk=4)
    arguments = {"token_axis": 1, "first_token": 3, "head_dim": 6, "valid_tokens": 61}
    whole = lynxq.encode(x, params, **arguments)
    with stream.encoding({"x": x}, {"x": params}, **arguments, ahead=99) as source:
        assert sorted(drain(source)) == sorted(drain(EncodedSource({"x": whole})))


def test_torch_tensors_are_encoded_too():
    torch = pytest.importorskip("torch")
    x = torch.arange(4000, dtype=torch.bfloat16).reshape(1, 100, 40)
    with stream.encoding({"x": x}, WIDE, token_axis=1, metadata={"model": "toy"}) as source:
        pair = Pair({"p": source})
        request = pair.ask("p")
        while not pair.of(stream.Done):
            pair.run()
        found = pair.received[request]
        assert found.metadata == {"model": "toy"}
        whole = lynxq.encode(x, WIDE, token_axis=1)
        assert found.encoded("x").anchor.tobytes() == whole.anchor.numpy().tobytes()
        cache = torch.zeros_like(x)
        found.decode("x", pages=(1, 3), out=cache[:, 16:48])
        assert torch.equal(cache[:, 16:48], lynxq.decode_full(whole)[:, 16:48])
        assert not cache[:, :16].any()


class Stepper:
    """An iterator of pieces that is told when to go on."""

    def __init__(self, tensors, step=1):
        self.tensors, self.step = tensors, step
        self.allowed = threading.Semaphore(0)
        self.asked = 0

    def __iter__(self):
        for name, each in self.tensors.items():
            for start in range(0, each.layout.pages, self.step):
                self.asked += 1
                self.allowed.acquire()
                yield name, each.pages(start, min(start + self.step, each.layout.pages))


def layouts(tensors):
    return {name: each.layout for name, each in tensors.items()}


def test_a_page_is_sent_while_the_next_one_is_being_made():
    tensors = {"k": wide(50)}
    woken = threading.Event()
    stepper = Stepper(tensors)
    with EncodingSource(layouts(tensors), stepper) as source:
        end = source.watch(woken.set)
        pair = Pair({"p": source})
        request = pair.ask("p")
        for made in range(4):
            pair.run()
            assert len(pair.of(AnchorPage)) == made
            woken.clear()
            stepper.allowed.release()
            assert woken.wait(10)
        end()
        pair.run()
        pair.check(request, tensors)


def test_pages_go_in_the_order_in_which_they_are_made():
    """Keys and values of a layer in turn; the order of the header would wait for ever with so little ahead."""
    tensors = {"k": wide(160, 0), "v": wide(160, 1)}

    def turns():
        for page in range(10):
            for name, each in tensors.items():
                yield name, each.pages(page, page + 1)

    with EncodingSource(layouts(tensors), turns(), ahead=2) as source:
        pair = Pair({"p": source})
        request = pair.ask("p")
        for _ in range(10**6):
            pair.run()
            if pair.of(stream.Done):
                break
        order = [(event.name, event.page) for event in pair.of(AnchorPage)]
        assert order == [(name, page) for page in range(10) for name in tensors]
        pair.check(request, tensors)


def test_a_slow_receiver_slows_the_encoder_down():
    tensors = {"k": wide(16 * 100)}
    made = []

    def pieces():
        for page in range(100):
            made.append(page)
            yield "k", tensors["k"].pages(page, page + 1)

    limits = stream.ReceiverLimits(anchor_window=8000, max_data=256)
    fits = 8000 // (64 + tensors["k"].layout.page_size("anchor", 1))
    with EncodingSource(layouts(tensors), pieces(), ahead=3) as source:
        source.wait("anchor", 0, 2)
        pair = Pair({"p": source}, limits=limits)
        request = pair.ask("p")
        for _ in range(300):
            pair.to_sender()
            pair.receiver.receive(pair.from_sender(1 << 20))  # nothing is taken
        # What fits the window was sent, `ahead` wait, and one is being made.
        assert len(made) <= fits + 1 + 3 + 1
        for _ in range(10**6):
            pair.run()
            if pair.of(stream.Done):
                break
        assert len(made) == 100
        pair.check(request, tensors)


def test_nothing_is_made_without_end_while_nobody_asks():
    tensors = {"k": wide(16 * 50)}
    stepper = Stepper(tensors)
    for _ in range(100):
        stepper.allowed.release()
    with EncodingSource(layouts(tensors), stepper, ahead=5) as source:
        source.wait("residual", 0, 4)
        assert source.frame("anchor", 0, 6) is None
        assert stepper.asked == 5


def test_two_requests_share_what_is_made():
    tensors = {"k": wide(100)}
    with EncodingSource(layouts(tensors), Stepper(tensors)) as source:
        source._pieces.allowed.release(100)
        pair = Pair({"p": source})
        requests = [pair.ask("p"), pair.ask("p")]
        while len(pair.of(stream.Done)) < 2:
            pair.run()
        for request in requests:
            pair.check(request, tensors)


def failing(tensors, error):
    yield "k", tensors["k"].pages(0, 1)
    raise error


@pytest.mark.parametrize("error", [ValueError("out of luck"), MemoryError("full"), SystemExit("end")])
def test_an_iterator_that_fails_ends_the_requests(error):
    tensors = {"k": wide(50)}
    with EncodingSource(layouts(tensors), failing(tensors, error)) as source:
        pair = Pair({"p": source})
        request = pair.ask("p")
        while not pair.of(Failed):
            pair.run()
        (failed,) = pair.of(Failed)
        assert (failed.code, failed.reason) == (Code.FAILED, f"pages could not be made: {error}")
        with pytest.raises(SourceFailedError) as caught:
            source.wait("anchor", 0, 1)
        assert caught.value.__cause__ is error
        assert source.frame("anchor", 0, 0) is not None  # what was made can still be sent
        del request


def test_values_that_cannot_be_encoded():
    x = np.zeros((40, 4), np.float32)
    x[20] = np.nan
    with (
        stream.encoding({"x": x}, KEYS, token_axis=0, step=1) as source,
        pytest.raises(SourceFailedError, match="non-finite") as caught,
    ):
        source.wait("anchor", 0, 2)
    assert isinstance(caught.value.__cause__, NonFiniteError)


@pytest.mark.parametrize(
    "pieces",
    [
        lambda k: [("k", k.pages(1, 2))],
        lambda k: [("k", k.pages(0, 2)), ("k", k.pages(1, 2))],
        lambda k: [("v", k.pages(0, 1))],
        lambda _: [("k", wide(50, channels=8).pages(0, 1))],
        lambda k: [("k", k.pages(0, 3))],
        lambda k: [("k", k), ("k", k.pages(3, 4))],
        lambda _: [("k", "bytes")],
        lambda _: [],
        lambda k: [("k", k.anchor_only())],
        lambda _: 7,
    ],
)
def test_pieces_that_do_not_fit(pieces):
    k = wide(50)
    with EncodingSource({"k": k.layout}, pieces(k)) as source:
        source._thread.join()
        with pytest.raises(SourceFailedError, match="could not be made"):
            source._check_going_on()


def test_arguments():
    for call in (
        lambda: EncodingSource({}, (), ahead=0),
        lambda: stream.encoding({"x": np.zeros((3, 3), np.float32)}, token_axis=0, step=0),
    ):
        with pytest.raises(ParamsError):
            call()
    with pytest.raises(DTypeError):
        stream.encoding({"x": np.zeros((3, 3), np.float32)}, "keys", token_axis=0)
    with pytest.raises(ShapeError):
        stream.encoding({"x": np.zeros((3, 3), np.float32)}, token_axis=5)
    with pytest.raises(DTypeError, match="tensors"):
        stream.encoding(None, token_axis=0)
    with pytest.raises(ParamsError, match="'y'"):  # a name that is written wrongly is not passed over
        stream.encoding({"x": np.zeros((3, 3), np.float32)}, {"y": KEYS}, token_axis=0)


@pytest.mark.parametrize("place", [("anchor", 0, 99), ("anchor", 1, 0), ("lynx", 0, 0)])
def test_a_page_that_does_not_exist_is_not_waited_for(place):
    with stream.encoding({"x": np.zeros((3, 3), np.float32)}, token_axis=0) as source:
        with pytest.raises(SourceFailedError, match="none of them"):
            source.wait(*place)
        assert source.wait("anchor", 0, 0) is not None


def test_a_closed_source_leaves_no_thread():
    before = threading.active_count()
    source = EncodingSource(layouts({"k": wide(500)}), iter([("k", wide(500).pages(0, 1))] * 9), ahead=1)
    source.close()
    source.close()
    assert threading.active_count() == before
    with pytest.raises(SourceFailedError, match="closed"):
        source.frame("anchor", 0, 1)
    with pytest.raises(SourceFailedError, match="closed"):
        source.place(20)


def test_an_iterator_may_wait_for_who_uses_the_source_when_it_is_dropped():
    """The source's lock is not held then."""
    answered = []

    def pieces():
        try:
            yield "k", wide(500).pages(0, 1)
            yield "k", wide(500).pages(1, 2)
        finally:
            thread = threading.Thread(target=lambda: answered.append(source.frame("anchor", 0, 0)), daemon=True)
            thread.start()
            thread.join(5)
            answered.append("end")

    source = EncodingSource(layouts({"k": wide(500)}), pieces(), ahead=1)
    source.close()
    assert [type(each) for each in answered] == [Frame, str]


# --- containers --------------------------------------------------------------------------------------


def test_a_container_is_sent_as_it_is():
    tensors = encoded()
    data = stored(tensors)
    with lynxq.open(data) as reader:
        source = ContainerSource(reader)
        assert source.header.pack() == data[: source.header.size]
        sent = drain(source)
        assert b"".join(head + payload for *_, head, payload in sent) == data[source.header.size :]
        pair = Pair({"p": source})
        request = pair.ask("p")
        pair.run()
        pair.check(request, tensors)


def test_a_segment_of_several(tmp_path):
    path = tmp_path / "kv.lynx"
    parts = [{"k": coded(20)}, {"k": coded(9, 1, first_token=20)}]
    lynxq.save(path, parts[0])
    lynxq.append(path, parts[1])
    with lynxq.open(path) as reader:
        with pytest.raises(ShapeError, match="2 segments"):
            ContainerSource(reader)
        with pytest.raises(ShapeError):
            ContainerSource(reader, segment=2)
        for number, tensors in enumerate(parts):
            pair = Pair({"p": ContainerSource(reader, segment=number)})
            request = pair.ask("p")
            pair.run()
            pair.check(request, tensors)
    with pytest.raises(DTypeError):
        ContainerSource(path)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_damaged_page_of_a_container_is_not_sent(kind):
    data = stored(encoded())
    place = frame(data, kind, 0, 1)
    with lynxq.open(flipped(data, 8 * place.payload + 100)) as reader:
        pair = Pair({"p": ContainerSource(reader)})
        pair.ask("p")
        pair.run()
        found = [(event.stream, event.page) for event in pair.of(stream.Damaged)]
        assert found == ([("anchor", 1), ("residual", 1)] if kind == 0 else [("residual", 1)])


def test_a_container_of_anchors_alone():
    tensors = {"k": wide().anchor_only()}
    with lynxq.open(stored(tensors)) as reader:
        pair = Pair({"p": ContainerSource(reader)})
        request = pair.ask("p")
        pair.run()
        pair.check(request, tensors, "anchor")


def record(path, sources, change=lambda data, _: data):
    """Receives into a file; returns the recorder, not yet closed."""
    pair = Pair(sources, make=lambda header: Recorder(path, header))
    request = pair.ask("p")
    pair.run(change)
    return pair.received[request]


def test_a_transmission_is_recorded_as_a_container(tmp_path):
    tensors = encoded()
    path = tmp_path / "kv.lynx"
    recorder = record(path, {"p": EncodedSource(tensors, metadata={"model": "toy", "kind": "κ"})})
    assert not path.exists()
    recorder.close()
    assert path.read_bytes() == stored(tensors)
    assert list(tmp_path.iterdir()) == [path]


def lossy(kind):
    return damage(2, kind, 99)


def test_a_recording_without_all_residuals_is_a_prefix(tmp_path):
    tensors = encoded()
    path = tmp_path / "kv.lynx"
    sources = {"p": EncodedSource(tensors, metadata={"model": "toy", "kind": "κ"})}
    with pytest.raises(IncompleteError, match="residual page 2"):
        record(path, sources, change=lossy(1)).close()
    assert list(tmp_path.iterdir()) == []
    record(path, sources, change=lossy(1)).close(partial=True)
    data = stored(tensors)
    assert path.read_bytes() == data[: frame(data, 1, 0, 2).begin]
    with lynxq.open(path) as reader:
        assert not reader.complete
        assert reader["k"].decode("anchor").tobytes() == lynxq.decode_anchor(tensors["k"]).tobytes()
        full = lynxq.decode_full(tensors["k"])
        assert reader["k"].decode(tokens=(0, 32)).tobytes() == full[:32].tobytes()


def test_a_recording_without_all_anchors_is_none(tmp_path):
    path = tmp_path / "kv.lynx"
    path.write_bytes(b"before")
    for partial in (False, True):
        with pytest.raises(IncompleteError, match="anchor page 2"):
            record(path, {"p": EncodedSource(encoded())}, change=lossy(0)).close(partial=partial)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_recording_that_fails_leaves_nothing(tmp_path):
    path = tmp_path / "kv.lynx"

    def go():
        with Recorder(path, EncodedSource(encoded()).header):
            raise KeyError("stop")

    with pytest.raises(KeyError):
        go()
    with pytest.raises(IncompleteError), Recorder(path, EncodedSource(encoded()).header):
        pass
    assert list(tmp_path.iterdir()) == []


# --- what is here so far -----------------------------------------------------------------------------


def test_pages_are_decoded_as_they_arrive():
    tensors = {"k": wide(50)}
    pair = Pair({"p": EncodedSource(tensors)})
    pair.ask("p")
    anchors, full = lynxq.decode_anchor(tensors["k"]), lynxq.decode_full(tensors["k"])
    cache = np.full((50, 40), 7, np.float32)
    pages = {"anchor": 0, "full": 0}

    def change(data, lane):
        for event in pair.events:
            tier = {"AnchorPage": "anchor", "ResidualPage": "full"}.get(type(event).__name__)
            if tier is None:
                continue
            begin, end = event.page * 16, min(event.page * 16 + 16, 50)
            pair.received[1].decode("k", tier, pages=(event.page, event.page + 1), out=cache[begin:end])
            assert cache[begin:end].tobytes() == (anchors if tier == "anchor" else full)[begin:end].tobytes()
            pages[tier] += 1
        pair.events.clear()
        return data

    pair.run(change)
    change(b"", 0)
    assert pages == {"anchor": 4, "full": 4}
    assert cache.tobytes() == full.tobytes()


def test_nothing_approximate_is_given_for_something_exact():
    header = EncodedSource({"k": wide(50)}).header
    source = EncodedSource({"k": wide(50)})
    received = stream.Received(header)
    assert received.tier("k") is None
    with pytest.raises(IncompleteError, match="anchor page 0"):
        received.decode("k", "anchor")
    for page in range(4):
        received.add(AnchorPage(1, 0, "k", page, *source.frame("anchor", 0, page)))
    assert received.tier("k") == "anchor"
    received.decode("k", "anchor")
    with pytest.raises(IncompleteError, match="residual page 0"):
        received.decode("k")
    with pytest.raises(MissingTensorError):
        received.decode("v")
    with pytest.raises(ParamsError):
        received.encoded("k", "residual")
    with pytest.raises(ShapeError):
        received.encoded("k", "anchor", (0, 5))


def test_the_assembler_takes_what_belongs_together():
    source, other = EncodedSource({"k": wide(50)}), EncodedSource({"k": wide(50, 1)})
    assembler = Assembler(wide(50).layout, 1, 3)
    with pytest.raises(IncompleteError, match="before its anchor"):
        assembler.put(*source.frame("residual", 0, 1))
    for page in (0, 3):
        with pytest.raises(lynxq.errors.FrameError):
            assembler.put(*source.frame("anchor", 0, page))
    for page in (2, 1):
        assembler.put(*source.frame("anchor", 0, page))
        with pytest.raises(ResidualMismatchError):
            assembler.put(*other.frame("residual", 0, page))
        assembler.put(*source.frame("residual", 0, page))
    assert same(assembler.encoded(), wide(50).pages(1, 3))
    assert same(assembler.encoded("full", 2, 3), wide(50).pages(2, 3))
    with pytest.raises(IncompleteError):
        assembler.encoded("anchor", 0, 2)
    # Another anchor in the place of the first one: its residual counts no more.
    assembler.put(*other.frame("anchor", 0, 1))
    assert (assembler.has("anchor", 1), assembler.has("residual", 1)) == (True, False)
    # A damaged page takes the place of a sound one: neither counts.
    head, payload = source.frame("anchor", 0, 2)
    with pytest.raises(lynxq.errors.AnchorChecksumError):
        assembler.put(head, bytes(payload[:-1]) + b"\1")
    assert not assembler.has("anchor", 2)


def test_events_of_a_request_have_its_header():
    pair = Pair({"p": EncodedSource(encoded(), metadata={"a": "b"})})
    pair.ask("p")
    pair.run()
    file = io.BytesIO()
    lynxq.save(file, encoded(), metadata={"a": "b"})
    (opened,) = pair.of(RequestOpened)
    assert opened.header.pack() == file.getvalue()[: opened.header.size]
