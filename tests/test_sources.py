"""Where containers are read from and saved to: what is read of them, and what is refused."""

import gc
import io
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import lynxq
from lynxq.errors import (
    DTypeError,
    MissingAnchorError,
    MissingResidualError,
    NotLynxError,
    ResidualMismatchError,
    SegmentError,
    ShapeError,
    SourceError,
    TruncatedError,
    WriterError,
)
from tests.containers import (
    CountingFile,
    anchors_end,
    coded,
    decoded,
    error_of,
    frame,
    frames,
    readings,
    spans,
    stored,
    stored_split,
    two,
)

DATA = stored(two())
DESCRIPTORS = Path("/proc/self/fd")


def bytes_of(*intervals):
    return {position for begin, end in intervals for position in range(begin, end)}


def test_opening_reads_headers_only():
    file = CountingFile(DATA)
    reader = lynxq.open(file)
    reader.describe()
    assert (repr(reader["k"]), reader["k"].shape, reader.consumed) != ()
    assert file.read_bytes == bytes_of((0, spans(DATA)[0].header))
    grown = DATA + stored(two(first=(20, 9)))
    file = CountingFile(grown)
    lynxq.open(file).describe()
    assert file.read_bytes == bytes_of(*((span.begin, span.header) for span in spans(grown)))


def test_the_anchor_tier_reads_no_residual_byte(tmp_path):
    file = CountingFile(DATA)
    lynxq.load(file, tier="anchor")
    assert file.read_bytes == bytes_of((0, anchors_end(DATA)))
    anchor, residual = stored_split(tmp_path, two())
    cold = CountingFile(residual)
    lynxq.load(anchor, residual=cold, tier="anchor")
    assert cold.read_bytes == bytes_of((0, spans(residual)[0].header))
    file = CountingFile(DATA)
    lynxq.load(file, names=["v"])
    parts = [(each.begin, each.end) for each in frames(DATA) if each.tensor == 1]
    assert file.read_bytes == bytes_of((0, spans(DATA)[0].header), *parts)


@pytest.mark.parametrize("tier", ["anchor", "full"])
def test_token_ranges_read_only_the_pages_that_they_need(tier):
    grown = DATA + stored(two(first=(20, 9)))
    file = CountingFile(grown)
    tensor = lynxq.open(file)["k"]
    for start in range(41):
        for stop in range(start, 41):
            file.read_bytes = set()
            tensor.decode(tier, tokens=(start, stop))
            wanted = [
                (each.begin, each.end)
                for each in frames(grown)
                if each.tensor == 0
                and each.kind <= (tier == "full")
                and max(start, 20 * each.segment + 8 * each.page)
                < min(stop, 20 * each.segment + min(8 * each.page + 8, 20))
            ]
            assert file.read_bytes == bytes_of(*wanted)


def test_a_page_reads_its_frame():
    file = CountingFile(DATA)
    tensor = lynxq.open(file)["v"]
    file.read_bytes = set()
    place = frame(DATA, 0, 1, 1)
    assert tensor.page("anchor", 1) == DATA[place.payload : place.end]
    assert file.read_bytes == bytes_of((place.begin, place.end))
    file.read_bytes, below = set(), frame(DATA, 1, 1, 1)
    assert tensor.page("residual", 1) == DATA[below.payload : below.end]
    assert file.read_bytes == bytes_of((place.begin, place.begin + 64), (below.begin, below.end))


def test_pages(tmp_path):
    tensors, later = two(), two(7, first=(20, 9))
    data = DATA + stored(later)
    path = tmp_path / "kv.lynx"
    path.write_bytes(data)
    with lynxq.open(path) as reader:
        for each in frames(data):
            assert each.payload % 64 == 0
            name, stream = "kv"[each.tensor], ("anchor", "residual")[each.kind]
            page = reader[name].page(stream, each.page, segment=each.segment)
            assert page == data[each.payload : each.end]
            assert page.readonly
            assert np.frombuffer(page, np.uint8).ctypes.data % 64 == 0
            encoded = (tensors, later)[each.segment][name].pages(each.page, each.page + 1)
            assert page == getattr(encoded, stream).tobytes()
        for stream, page, segment, error in (
            ("anchor", 3, 0, ShapeError),
            ("anchor", -1, 0, ShapeError),
            ("anchor", 0, 2, ShapeError),
            ("anchor", 0, -1, ShapeError),
            ("full", 0, 0, ValueError),
        ):
            with pytest.raises(error):
                reader["k"].page(stream, page, segment=segment)
        for segment in (-1, 2):
            with pytest.raises(ShapeError):
                reader["k"].encoded(segment=segment)


def test_a_page_outlives_its_reader(tmp_path):
    path = tmp_path / "kv.lynx"
    path.write_bytes(DATA)
    reader = lynxq.open(path)
    page = reader["k"].page("anchor", 0)
    reader.close()
    place = frame(DATA, 0, 0, 0)
    assert page == DATA[place.payload : place.end]


def test_closed_readers(tmp_path):
    path = tmp_path / "kv.lynx"
    path.write_bytes(DATA)
    with lynxq.open(path) as reader:
        pass
    assert error_of(reader["k"].decode) is SourceError
    assert error_of(reader["k"].page, "anchor", 0) is SourceError
    assert reader["k"].shape == (20, 2)
    reader.close()
    with path.open("rb") as file:
        with lynxq.open(file):
            pass
        assert not file.closed


def test_a_closed_reader_lets_go_of_its_buffer():
    data = bytearray(DATA)
    reader = lynxq.open(data)
    reader.close()
    data.clear()
    assert error_of(reader["k"].decode) is SourceError


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="needs a list of the open files of a process")
def test_no_file_stays_open(tmp_path):
    path = tmp_path / "kv.lynx"
    path.write_bytes(DATA)
    before = len(list(DESCRIPTORS.iterdir()))
    for _ in range(50):
        lynxq.load(path)
        assert error_of(lynxq.open, path, residual=b"nothing") is NotLynxError
        assert error_of(lynxq.append, path, two()) is SegmentError
    gc.collect()
    assert len(list(DESCRIPTORS.iterdir())) <= before


@pytest.mark.parametrize(
    "make",
    [
        bytes,
        bytearray,
        memoryview,
        io.BytesIO,
        lambda data: np.frombuffer(data, np.uint8),
        lambda data: np.frombuffer(data, np.uint64),
        lambda data: memoryview(data).cast("B", (len(data) // 64, 64)),
        CountingFile,
        lambda data: CountingFile(data, most=7),
        lambda data: io.BufferedReader(io.BytesIO(data), 16),
    ],
)
def test_sources(make):
    assert set(readings(make(DATA), [two()]).values()) == {None}


def test_file_sources(tmp_path):
    path = tmp_path / "kv.lynx"
    path.write_bytes(DATA)
    for source in (path, str(path)):
        assert set(readings(source, [two()]).values()) == {None}
    with path.open("rb") as file, path.open("rb", buffering=0) as unbuffered:
        for each in (file, unbuffered):
            each.seek(100)  # where it stands does not matter
            assert set(readings(each, [two()]).values()) == {None}


def test_mapped_sources(tmp_path):
    path = tmp_path / "kv.lynx"
    path.write_bytes(DATA)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert set(readings(mapped, [two()]).values()) == {None}


def test_a_file_that_shrinks():
    class Shrinking(CountingFile):
        def seek(self, offset, whence=0):
            return super().seek(offset, whence) + (1000 if whence == 2 else 0)

    assert error_of(lynxq.load, Shrinking(DATA[: anchors_end(DATA)]), tier="full") is TruncatedError


def test_wrong_sources(tmp_path):
    reading, writing = os.pipe()
    os.close(writing)
    closed = io.BytesIO(DATA)
    closed.close()

    class OnlyRead:
        def read(self):
            return DATA

    with os.fdopen(reading, "rb") as pipe:
        wrong = [3, 3.5, [DATA], {}, pipe, closed, OnlyRead(), np.frombuffer(DATA, np.uint8)[::2], lynxq]
        for source in wrong:
            assert error_of(lynxq.open, source) is SourceError
            assert error_of(lynxq.open, DATA, residual=source) is SourceError
    assert error_of(lynxq.open, None) is SourceError
    assert error_of(lynxq.open, np.zeros(4, np.float32)) is NotLynxError
    with pytest.raises(FileNotFoundError):
        lynxq.open(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        lynxq.open(tmp_path)


def test_text_files_are_refused():
    assert error_of(lynxq.open, io.StringIO("not a container")) is SourceError


def test_save_writes_where_the_file_stands():
    file = io.BytesIO(b"before")
    file.seek(6)
    lynxq.save(file, two(), metadata={"a": "b"})
    assert file.getvalue() == b"before" + stored(two(), {"a": "b"})
    assert file.tell() == len(file.getvalue())

    class Stream:
        def __init__(self):
            self.parts = []

        def write(self, data):
            self.parts.append(bytes(data))
            return len(data)

    stream = Stream()
    lynxq.save(stream, two(), metadata={"a": "b"})
    assert b"".join(stream.parts) == stored(two(), {"a": "b"})


def test_save_to_a_file_that_writes_a_part_at_a_time():
    class Slow(io.RawIOBase):
        data = b""

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data[:100])
            return min(len(data), 100)

    file = Slow()
    lynxq.save(file, two(), metadata={"a": "b"})
    assert file.data == stored(two(), {"a": "b"})


def test_wrong_tensors(tmp_path):
    for tensors in ([coded(8)], {"k": np.zeros(3)}, {"k": None}, coded(8), None):
        for target in (io.BytesIO(), tmp_path / "kv.lynx"):
            with pytest.raises(DTypeError):
                lynxq.save(target, tensors)
    assert list(tmp_path.iterdir()) == []


def test_split(tmp_path):
    tensors = two()
    anchor, residual = stored_split(tmp_path, tensors)
    assert {each.kind for each in frames(anchor)} == {0}
    assert {each.kind for each in frames(residual)} == {1}
    assert set(readings(anchor, [tensors], residual=residual).values()) == {None}
    for sources in ((anchor, io.BytesIO(residual)), (tmp_path / "anchor.lynx", tmp_path / "residual.lynx")):
        assert lynxq.load(sources[0], residual=sources[1])["k"].tobytes() == decoded(tensors["k"], "full").tobytes()
    assert lynxq.load(anchor, tier="anchor")["v"].tobytes() == decoded(tensors["v"], "anchor").tobytes()
    assert lynxq.describe(anchor, residual=residual)["tensors"] == lynxq.describe(stored(tensors))["tensors"]
    with pytest.raises(MissingResidualError):
        lynxq.load(anchor)
    assert error_of(lynxq.open, residual) is MissingAnchorError
    assert error_of(lynxq.open, residual, residual=anchor) is MissingAnchorError
    assert error_of(lynxq.open, anchor, residual=anchor) is ResidualMismatchError
    other = stored_split(tmp_path, two(tokens=(20, 10)))[1]
    assert error_of(lynxq.open, anchor, residual=other) is ResidualMismatchError
    assert error_of(lynxq.save_split, tmp_path / "x", tmp_path / "x", tensors) is WriterError
    twin = lynxq.open(anchor, residual=stored_split(tmp_path, two(9))[1])
    assert twin["k"].decode("anchor").tobytes() == decoded(tensors["k"], "anchor").tobytes()
    assert error_of(twin["k"].decode) is ResidualMismatchError
    assert [type(error) for error in twin.verify()] == [ResidualMismatchError] * 2


class SlowFile(CountingFile):
    """Lets other threads run between a seek and the read after it."""

    def read(self, size=-1):
        time.sleep(1e-4)
        return super().read(size)


def test_threads_share_a_reader(tmp_path):
    tensors = two()
    data = stored(tensors)
    path = tmp_path / "kv.lynx"
    path.write_bytes(data)
    with path.open("rb") as file, lynxq.open(path) as mapped:
        for reader in (
            mapped,
            lynxq.open(data),
            lynxq.open(io.BytesIO(data)),
            lynxq.open(file),
            lynxq.open(SlowFile(data)),
        ):

            def work(number, reader=reader):
                name, tier, start = "kv"[number % 2], ("anchor", "full")[number // 2 % 2], number % 9
                found = reader[name].decode(tier, tokens=(start, 9))
                return found.tobytes() == decoded(tensors[name], tier)[start:9].tobytes()

            with ThreadPoolExecutor(8) as pool:
                assert all(pool.map(work, range(64)))
    assert list(tmp_path.iterdir()) == [path]
