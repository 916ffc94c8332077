"""LMCache's `Serializer` and `Deserializer`, on its memory objects.

Neither class is derived from LMCache's: those have no behaviour, and this module can be read and imported without
LMCache. :func:`lynxq.integrations.lmcache.register` makes them virtual subclasses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lynxq import arrays
from lynxq.integrations.lmcache.blob import NO_KEY, Blob, Bytes, blob_of, digest_of
from lynxq.integrations.lmcache.options import Options


class MemoryObj(Protocol):
    """What is used of LMCache's memory objects."""

    raw_data: Any

    def get_size(self) -> int:
        """Bytes in use."""

    def get_shapes(self) -> Sequence[Sequence[int]]:
        """Shapes of the groups."""

    def get_dtypes(self) -> Sequence[object]:
        """The torch dtypes of the groups."""

    def get_tensor(self, index: int) -> Any:
        """A group as a torch tensor that shares the object's memory."""


class MemoryLayoutDesc(Protocol):
    """What is used of LMCache's description of an object that is not there yet."""

    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[object]


def _blob(options: Options, shapes: Sequence[Sequence[int]], dtypes: Sequence[object]) -> Blob:
    return blob_of(options, tuple(tuple(map(int, shape)) for shape in shapes), tuple(map(str, dtypes)))


def _groups(obj: MemoryObj) -> list[Any]:
    # Not obj.tensor: it fails for objects of several groups.
    return [obj.get_tensor(index) for index in range(len(obj.get_shapes()))]


def _bytes(obj: MemoryObj) -> Bytes:
    """The bytes in use; not ``obj.tensor``, whose shape is that of the whole buffer or of what is used of it."""
    raw = obj.raw_data
    data = (
        np.frombuffer(raw, np.uint8)
        if isinstance(raw, bytes | bytearray | memoryview)
        else arrays.as_bytes(raw, "raw_data")
    )
    return data[: obj.get_size()]


class LynxqSerializer:
    """Codes memory objects for an L2 adapter. Threads may share it.

    Parameters
    ----------
    options : Options
    """

    def __init__(self, options: Options) -> None:
        self.options = options

    def estimate_serialized_size(self, layout_desc: MemoryLayoutDesc) -> int:
        """Bytes of a serialized object; exact, and the same for all keys.

        LMCache's adapters for files and object stores load as many bytes as this says, and count fewer as a miss.

        Raises
        ------
        ShapeError, DTypeError, ParamsError
            If objects like this cannot be coded: nothing is then stored.
        """
        return _blob(self.options, layout_desc.shapes, layout_desc.dtypes).size

    def serialize(self, src: MemoryObj, dst: MemoryObj, key: Any = None) -> int:
        """Code an object into a buffer; returns the number of bytes.

        Parameters
        ----------
        src, dst : MemoryObj
            The object, and a buffer of at least `estimate_serialized_size` bytes.
        key : ObjectKey, optional
            Bound to what is written: under another key it is a miss.
        """
        blob = _blob(self.options, src.get_shapes(), src.get_dtypes())
        return blob.write(_groups(src), _bytes(dst), NO_KEY if key is None else digest_of(key))


class LynxqDeserializer:
    """Decodes what `LynxqSerializer` wrote. Threads may share it.

    Parameters
    ----------
    options : Options
    """

    def __init__(self, options: Options) -> None:
        self.options = options

    def deserialize(self, src: MemoryObj, dst: MemoryObj, key: Any = None) -> None:
        """Decode a buffer into an object, which is unchanged if anything is wrong with the buffer.

        Parameters
        ----------
        src, dst : MemoryObj
            The buffer, which may be longer than what it holds, and the object.
        key : ObjectKey, optional
            The key that the buffer was loaded by. Without it the bytes of any key will do.

        Raises
        ------
        LynxqError
            If what is in the buffer is damaged, cut off, or of another key, layout, shape or dtype.
        """
        blob = _blob(self.options, dst.get_shapes(), dst.get_dtypes())
        blob.read(_bytes(src), _groups(dst), None if key is None else digest_of(key))


def create_processor(config: Mapping[str, Any]) -> Any:
    """The factory that LMCache calls: a serde processor for the options in its configuration."""
    from lmcache.v1.distributed.serde import AsyncSerdeProcessor

    options = Options.of(config)
    return AsyncSerdeProcessor(LynxqSerializer(options), LynxqDeserializer(options), max_workers=options.max_workers)
