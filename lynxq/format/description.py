"""The description of a segment as bytes: user metadata and the table of tensors. Normative text in docs/format.md."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Literal, TypeVar

from lynxq import dtypes
from lynxq.errors import HeaderError, LimitError, ParamsError, ReservedError, ShapeError
from lynxq.layout import MAX_AXES, Layout, align
from lynxq.params import SPLITS, Params

#: Caps of the format.
MAX_TENSORS = 1 << 16
MAX_METADATA = 1 << 16
MAX_TEXT = 1 << 16
MAX_NAME = 1 << 10

_COUNTS = struct.Struct("<II")
_ENTRY = struct.Struct("<II")
_RECORD = struct.Struct("<IHBBBBBBBBHIIIIdQQ")
_RECORD_ALIGNMENT = 8

_T = TypeVar("_T")

_AXES: tuple[Literal["token", "channel"], ...] = ("token", "channel")
_CENTERS: tuple[Literal["midrange", "mean"], ...] = ("midrange", "mean")
_METADATA: tuple[Literal["u8", "u16", "f32"], ...] = ("u8", "u16", "f32")


def pack_description(metadata: Mapping[str, str], tensors: Mapping[str, Layout]) -> bytes:
    """Metadata and tensors as bytes, in the order given.

    Raises
    ------
    LimitError
        If a count or a text is beyond its cap.
    HeaderError
        If a name or a metadata entry is not a string that has a UTF-8 form, or a name is empty.
    """
    _cap("metadata entries", len(metadata), MAX_METADATA)
    _cap("tensors", len(tensors), MAX_TENSORS)
    parts = [_COUNTS.pack(len(metadata), len(tensors))]
    for key, value in metadata.items():
        pair = _utf8("metadata key", key, MAX_TEXT), _utf8("metadata value", value, MAX_TEXT)
        parts += [_ENTRY.pack(*map(len, pair)), *pair]
    parts += [_pack_record(name, layout) for name, layout in tensors.items()]
    return b"".join(parts)


def sorted_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata in the order of the format: by the bytes of its keys; raises `HeaderError` for other than strings."""
    if not isinstance(metadata, Mapping):
        raise HeaderError(f"metadata must be a mapping of strings to strings, got {metadata!r}")
    keys = sorted(metadata, key=lambda key: _utf8("metadata key", key, MAX_TEXT))
    return {key: metadata[key] for key in keys}


def _pack_record(name: str, layout: Layout) -> bytes:
    params = layout.params
    text = _utf8("tensor name", name, MAX_NAME)
    if not text:
        raise HeaderError("a tensor name must not be empty")
    points = struct.pack(f"<{len(params.points)}f", *params.points)
    dims = struct.pack(f"<{len(layout.shape)}Q", *layout.shape)
    size = align(_RECORD.size + len(dims) + len(points) + len(text), _RECORD_ALIGNMENT)
    fixed = _RECORD.pack(
        size,
        len(text),
        layout.dtype.number,
        len(layout.shape),
        layout.token_axis,
        _AXES.index(params.axis),
        _CENTERS.index(params.center),
        _METADATA.index(params.metadata),
        params.anchor_bits,
        params.residual_bits,
        0,
        params.range_size,
        params.chunk,
        params.page,
        params.sink_tokens,
        params.alpha,
        layout.head_dim,
        layout.first_token,
    )
    return (fixed + dims + points + text).ljust(size, b"\0")


def unpack_description(data: memoryview) -> tuple[dict[str, str], dict[str, Layout]]:
    """The inverse of `pack_description`; the caller checks the checksum first, and the one form afterwards.

    Raises
    ------
    HeaderError
        If a rule of the format is broken.
    ReservedError
        If a reserved field is not zero.
    LimitError
        If a count is beyond its cap.
    """
    cursor = _Cursor(data)
    entries, records = _COUNTS.unpack(cursor.take(_COUNTS.size, "counts"))
    _cap("metadata entries", entries, MAX_METADATA)
    _cap("tensors", records, MAX_TENSORS)
    metadata: dict[str, str] = {}
    for _ in range(entries):
        sizes = _ENTRY.unpack(cursor.take(_ENTRY.size, "metadata"))
        key, value = (cursor.text(size, "metadata") for size in sizes)
        if metadata and key.encode() <= next(reversed(metadata)).encode():
            raise HeaderError(f"metadata keys must increase, got {key!r} after {next(reversed(metadata))!r}")
        metadata[key] = value
    tensors: dict[str, Layout] = {}
    for _ in range(records):
        name, layout = _unpack_record(cursor)
        if name in tensors:
            raise HeaderError(f"tensor names must differ, got {name!r} twice")
        tensors[name] = layout
    if cursor.rest:
        raise HeaderError(f"{cursor.rest} bytes follow the last tensor of a description")
    return metadata, tensors


def _unpack_record(cursor: _Cursor) -> tuple[str, Layout]:
    fields = _RECORD.unpack(cursor.take(_RECORD.size, "a tensor"))
    size, name_size, dtype, axes, token_axis, axis, center, metadata, anchor_bits, residual_bits, reserved = fields[:11]
    range_size, chunk, page, sink_tokens, alpha, head_dim, first_token = fields[11:]
    if reserved:
        raise ReservedError(f"the reserved field of a tensor must be zero, got {reserved:#x}")
    if (anchor_bits, residual_bits) not in SPLITS:
        raise HeaderError(f"bits of a tensor must be one of {SPLITS}, got {(anchor_bits, residual_bits)}")
    if not 1 <= axes <= MAX_AXES:
        raise HeaderError(f"a tensor must have 1 to {MAX_AXES} axes, got {axes}")
    shape = struct.unpack(f"<{axes}Q", cursor.take(8 * axes, "a tensor's shape"))
    count = 1 << (anchor_bits - 1)
    points = struct.unpack(f"<{count}f", cursor.take(4 * count, "a tensor's anchor points"))
    name = cursor.text(name_size, "a tensor name")
    used = _RECORD.size + 8 * axes + 4 * count + name_size
    cursor.take(align(used, _RECORD_ALIGNMENT) - used, "a tensor's padding")
    if size != align(used, _RECORD_ALIGNMENT):
        raise HeaderError(f"record size of tensor {name!r} must be {align(used, _RECORD_ALIGNMENT)}, got {size}")
    if dtype not in dtypes.BY_NUMBER:
        raise HeaderError(f"dtype of tensor {name!r} must be one of {sorted(dtypes.BY_NUMBER)}, got {dtype}")
    try:
        params = Params(
            axis=_choice("grouping axis", axis, _AXES),
            range_size=range_size,
            chunk=chunk,
            page=page,
            anchor_bits=anchor_bits,
            residual_bits=residual_bits,
            alpha=alpha,
            center=_choice("center", center, _CENTERS),
            metadata=_choice("metadata width", metadata, _METADATA),
            sink_tokens=sink_tokens,
            anchor_points=points,
        )
        layout = Layout.of(
            params,
            shape,
            dtypes.BY_NUMBER[dtype],
            token_axis=token_axis,
            head_dim=head_dim,
            first_token=first_token,
        )
    except (ParamsError, ShapeError) as error:
        raise HeaderError(f"tensor {name!r}: {error}") from None
    return name, layout


def _choice(what: str, number: int, choices: tuple[_T, ...]) -> _T:
    if number >= len(choices):
        raise HeaderError(f"{what} must be below {len(choices)}, got {number}")
    return choices[number]


def _utf8(what: str, text: object, limit: int) -> bytes:
    if not isinstance(text, str):
        raise HeaderError(f"a {what} must be a string, got {text!r}")
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise HeaderError(f"a {what} must have a UTF-8 form, got {text!r}") from None
    _cap(f"bytes of a {what}", len(data), limit)
    return data


def _cap(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise LimitError(f"{what} must be at most {limit}, got {count}")


class _Cursor:
    """Reads a description from its beginning to its end and never beyond."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    @property
    def rest(self) -> int:
        return len(self._data) - self._position

    def take(self, size: int, what: str) -> memoryview:
        if size > self.rest:
            raise HeaderError(f"{what} needs {size} bytes of a description, but only {self.rest} are left")
        self._position += size
        return self._data[self._position - size : self._position]

    def text(self, size: int, what: str) -> str:
        data = bytes(self.take(size, what))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise HeaderError(f"{what} must be UTF-8, got {data!r}") from None
