"""A memory object as one lynxq container segment, written into and read from a flat buffer of bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynxq import arrays, container
from lynxq.arrays import Array
from lynxq.codec import decode, encode
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError, IdentityError, ShapeError
from lynxq.format.frames import HEADER_SIZE, KINDS, FrameHeader, checksum
from lynxq.format.header import PREAMBLE_SIZE, Header, Preamble, frame_offset
from lynxq.integrations.lmcache.options import Options
from lynxq.integrations.lmcache.parts import Part, parts_of
from lynxq.layout import TIER_STREAMS, Stream

Bytes = NDArray[np.uint8]

#: Metadata of a blob. All values have one length, so that the size of a blob does not depend on its key.
KEY, LAYOUT = "lmcache.key", "lmcache.layout"
#: Stands for the digest in a blob that was written without a key.
NO_KEY = "-" * 64


def digest_of(key: Any) -> str:
    """SHA-256 of all fields of an LMCache `ObjectKey`, as 64 hexadecimal digits."""
    fields = [key.chunk_hash.hex(), key.model_name, key.kv_rank, key.object_group_id, key.cache_salt]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


@dataclass(frozen=True)
class Blob:
    """The form of all blobs of objects with the same shapes, dtypes and options."""

    options: Options
    parts: tuple[Part, ...]

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that are stored."""
        return TIER_STREAMS[self.options.tier]

    def header(self, digest: str) -> Header:
        """The segment header of the object with this digest of its key."""
        metadata = {KEY: digest, LAYOUT: self.options.layout}
        return Header.of(metadata, {part.name: part.layout for part in self.parts}, self.streams)

    @cached_property
    def size(self) -> int:
        """Exact size of a blob in bytes: it follows from the layouts."""
        return self.header(NO_KEY).segment_size

    # --- writing -----------------------------------------------------------------------------------

    def write(self, groups: Sequence[Array], target: Bytes, digest: str = NO_KEY) -> int:
        """Code an object straight into the frames of its blob; returns the bytes of the blob.

        Parameters
        ----------
        groups : sequence of array
            The object's groups, contiguous; numpy arrays or torch tensors.
        target : array of uint8
            At least `size` bytes. Its preamble is written last: after a failure it holds no blob.
        digest : str
            Of the object's key.

        Raises
        ------
        ShapeError
            If the target is too small.
        NonFiniteError
            If a value is NaN or infinite.
        """
        if target.size < self.size:
            raise ShapeError(f"a blob of {self.size} bytes must fit its buffer, got {target.size} bytes")
        header = self.header(digest)
        for index, part in enumerate(self.parts):
            tensor = part.view(groups)
            for page in range(part.layout.pages):
                self._write_page(header, index, tensor, page, target)
        packed = np.frombuffer(header.pack(), np.uint8)
        target[PREAMBLE_SIZE : packed.size] = packed[PREAMBLE_SIZE:]
        target[:PREAMBLE_SIZE] = packed[:PREAMBLE_SIZE]
        return self.size

    def _write_page(self, header: Header, index: int, tensor: Array, page: int, target: Bytes) -> None:
        part = self.parts[index]
        layout, library = part.layout.narrowed(page, page + 1), arrays.library_of(tensor)
        places = {stream: self._place(header, part, stream, page) for stream in self.streams}
        payloads: dict[Stream, Bytes] = {}
        for stream in KINDS:
            size = layout.stream_size(stream)
            if stream in places:
                begin = places[stream] + HEADER_SIZE
                payloads[stream] = target[begin : begin + size]
            else:  # coded all the same, and dropped
                payloads[stream] = np.empty(size, np.uint8)
        start, stop = part.layout.span(page)
        encode(
            tensor[part.tokens(start, stop)],
            layout.params,
            token_axis=layout.token_axis,
            first_token=layout.first_token,
            head_dim=layout.head_dim,
            threads=self.options.threads,
            out=Encoded(layout, *(arrays.from_numpy(payload, library) for payload in payloads.values())),
        )
        anchor = checksum(payloads["anchor"])
        for stream, place in places.items():
            payload = payloads[stream]
            own, refined = (anchor, 0) if stream == "anchor" else (checksum(payload), anchor)
            frame = FrameHeader(KINDS[stream], index, page, payload.size, own, refined, header.identity)
            target[place : place + HEADER_SIZE] = np.frombuffer(frame.pack(), np.uint8)

    @staticmethod
    def _place(header: Header, part: Part, stream: Stream, page: int) -> int:
        """Where a frame begins in the blob."""
        begin = header.stream_offset(KINDS[stream])
        if begin is None:
            raise AssertionError(stream)
        return begin + header.tensor_offsets[stream][part.name] + frame_offset(part.layout, stream, page)

    # --- reading -----------------------------------------------------------------------------------

    def read(self, source: Bytes, groups: Sequence[Array], digest: str | None = None) -> None:
        """Decode a blob straight out of its frames into an object.

        Everything is compared with its checksum before anything is written.

        Parameters
        ----------
        source : array of uint8
            Begins with a blob; what follows it is ignored.
        groups : sequence of array
            The groups to write to, contiguous; numpy arrays or torch tensors.
        digest : str, optional
            Of the object's key. Without it the blob of any key will do.

        Raises
        ------
        ContainerError
            If the blob is damaged or cut off, or is not of this key, layout, shape or dtype.
        MissingResidualError
            If the full tier is configured, and the blob has anchors only.
        """
        size = Preamble.unpack(memoryview(source)[:PREAMBLE_SIZE]).segment_size
        expected = {LAYOUT: self.options.layout, **({} if digest is None else {KEY: digest})}
        expect = container.Expect(metadata=expected, names=[part.name for part in self.parts])
        with container.open(memoryview(source)[:size], expect=expect) as reader:
            checked = [(part, self._pages(reader[part.name], part)) for part in self.parts]
            for part, pages in checked:
                tensor = part.view(groups)
                library = arrays.library_of(tensor)
                for page, encoded in enumerate(pages):
                    start, stop = part.layout.span(page)
                    place = tensor[part.tokens(start, stop)]
                    decode(encoded.to(library), self.options.tier, out=place, threads=self.options.threads)

    def _pages(self, stored: container.StoredTensor, part: Part) -> list[Encoded]:
        """The pages of a tensor as they lie in the blob, checked."""
        found, wanted = stored.layout, part.layout
        if replace(found, params=wanted.params) != wanted:  # a blob names its own parameters
            raise IdentityError(
                f"{part.name!r} must be {_shown(wanted)}, got {_shown(found)}",
            )
        pages = []
        for page in range(found.pages):
            streams = [np.frombuffer(stored.page(stream, page), np.uint8) for stream in self.streams]
            pages.append(Encoded(found.narrowed(page, page + 1), *streams))
        return pages


def _shown(layout: Any) -> str:
    return (
        f"{layout.dtype.name} {layout.shape} with head_dim {layout.head_dim}, "
        f"token axis {layout.token_axis} and first token {layout.first_token}"
    )


@lru_cache(maxsize=256)
def blob_of(options: Options, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> Blob:
    """The form of the blobs of objects with these groups; see :func:`parts_of` for its errors."""
    if not shapes:
        raise DTypeError("an object must have at least one group, got none")
    return Blob(options, parts_of(options, shapes, dtypes))
