"""What the container tests share: small tensors, a reader of frames that uses none of lynxq's, and a referee."""

import io
import struct
from typing import NamedTuple

import lynxq
from lynxq import Params, testing
from lynxq.errors import ContainerError

#: Small pages; the chunk is smaller than the run, so centres and scales are stored, as u8.
KEYS = Params(page=8, range_size=8, chunk=4, sink_tokens=2)
VALUES = Params(axis="channel", page=8, range_size=2, chunk=1, metadata="u16", sink_tokens=0)

METADATA = {"model": "toy", "kind": "κ"}


def coded(tokens, seed=0, *, params=KEYS, first_token=0, channels=2, dtype="float32"):
    """A small encoded tensor of shape (tokens, channels)."""
    x = testing.contents("normal", (tokens, channels), dtype, seed)
    return lynxq.encode(x, params, token_axis=0, first_token=first_token)


def two(seed=0, tokens=(20, 9), first=(0, 0)):
    """Two tensors, by default of three and two pages."""
    return {
        "k": coded(tokens[0], seed, first_token=first[0]),
        "v": coded(tokens[1], seed + 1, first_token=first[1], dtype="float16"),
    }


def stored(tensors, metadata=None):
    """The bytes of a container."""
    file = io.BytesIO()
    lynxq.save(file, tensors, metadata=METADATA if metadata is None else metadata)
    return file.getvalue()


def stored_split(folder, tensors, metadata=None):
    """The bytes of the anchor and of the residual file of a split container."""
    paths = folder / "anchor.lynx", folder / "residual.lynx"
    lynxq.save_split(*paths, tensors, metadata=METADATA if metadata is None else metadata)
    return tuple(path.read_bytes() for path in paths)


def decoded(encoded, tier, **arguments):
    return (lynxq.decode_anchor if tier == "anchor" else lynxq.decode_full)(encoded, **arguments)


def error_of(function, *arguments, **more):
    """The class of the error that a call raises, None if it raises none; other than lynxq's own get through."""
    try:
        function(*arguments, **more)
    except ContainerError as error:
        assert str(error)  # noqa: PT017 the class is the caller's business
        return type(error)
    return None


def flipped(data, bit):
    """The data with one bit changed."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


# --- the structure of a file, read with offsets from the format's text --------------------------------


class Span(NamedTuple):
    """A segment of a file: where it begins, where its header ends, where it ends."""

    begin: int
    header: int
    end: int


class Frame(NamedTuple):
    """A frame of a file: what it is, where its header, its payload and its end are."""

    segment: int
    kind: int
    tensor: int
    page: int
    begin: int
    payload: int
    end: int


def spans(data):
    """The segments of a sound file."""
    found, offset = [], 0
    while offset < len(data):
        header, segment = struct.unpack_from("<QQ", data, offset + 24)
        found.append(Span(offset, offset + header, offset + segment))
        offset += segment
    return found


def frames(data):
    """The frames of a sound file, in order."""
    found = []
    for number, span in enumerate(spans(data)):
        offset = span.header
        while offset < span.end:
            magic, kind, _, tensor, page, size = struct.unpack_from("<4sHHIIQ", data, offset)
            assert magic == b"LXFR"
            found.append(Frame(number, kind, tensor, page, offset, offset + 64, offset + 64 + size))
            offset += 64 + size
    return found


def frame(data, kind, tensor, page, segment=0):
    """One frame of a sound file."""
    (found,) = [each for each in frames(data) if each[:4] == (segment, kind, tensor, page)]
    return found


def runs(intervals):
    """The same bytes in the fewest intervals: those that touch become one, gaps stay."""
    found = []
    for begin, end in sorted(intervals):
        first = found.pop()[0] if found and found[-1][1] == begin else begin
        found.append((first, end))
    return found


def anchors_end(data, segment=-1):
    """Where the anchors of a segment end: the shortest prefix that is usable."""
    number = len(spans(data)) - 1 if segment == -1 else segment
    return max(each.end for each in frames(data) if each.kind == 0 and each.segment == number)


# --- the referee ---------------------------------------------------------------------------------------


def readings(source, truth, *, residual=None, allow_trailing=False, metadata=METADATA):
    """What a possibly damaged container still gives; fails if that is anything but the truth.

    Parameters
    ----------
    source, residual, allow_trailing
        As for `lynxq.open`.
    truth : list of dict of str to Encoded
        What was stored, segment by segment.

    Returns
    -------
    dict
        ``{"open": error class}``, or for every (segment, name, tier) the error class, None where it was right.
    """
    try:
        reader = lynxq.open(source, residual=residual, allow_trailing=allow_trailing)
    except ContainerError as error:
        return {"open": type(error)}
    found = {}
    with reader:
        assert list(reader) == list(truth[0])
        assert reader.metadata == metadata
        assert reader.segments <= len(truth)
        for segment in range(reader.segments):
            for name, encoded in truth[segment].items():
                for tier in ("anchor", "full"):
                    found[segment, name, tier] = _reading(reader[name], encoded, tier, segment)
    return found


def _reading(tensor, wanted, tier, segment):
    try:
        found = tensor.encoded(tier, segment=segment)
    except ContainerError as error:
        return type(error)
    assert found.layout == wanted.layout
    assert found.anchor.tobytes() == wanted.anchor.tobytes()
    if tier == "full":
        assert found.residual.tobytes() == wanted.residual.tobytes()
    return None


class CountingFile(io.RawIOBase):
    """A readable file that notes which bytes were asked for, and may give fewer at a time."""

    def __init__(self, data, most=None):
        super().__init__()
        self._data, self._position, self._most = data, 0, most
        self.read_bytes = set()

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=0):
        self._position = offset + (0, self._position, len(self._data))[whence]
        return self._position

    def read(self, size=-1):
        assert size >= 0, "the whole file was read"
        part = self._data[self._position : self._position + (min(size, self._most) if self._most else size)]
        self.read_bytes.update(range(self._position, self._position + len(part)))
        self._position += len(part)
        return part
