"""Reading containers: `open` (lazy), `load` (everything), `describe` (no data)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from types import TracebackType
from typing import Any, Self

from lynxq.arguments import instance, shown
from lynxq.arrays import Array, Library
from lynxq.container.expect import Expect
from lynxq.container.segments import join, walk
from lynxq.container.source import Readable, open_source
from lynxq.container.stored import StoredTensor
from lynxq.errors import ContainerError, MissingTensorError, ParamsError
from lynxq.format.header import VERSION, framed_size
from lynxq.layout import Tier


class Reader(Mapping[str, StoredTensor]):
    """An open container: a mapping of names to tensors. Made by :func:`open`; use it in a ``with`` statement.

    Attributes
    ----------
    metadata : dict of str to str
        What the writer said of the tensors.
    consumed : int
        Bytes of the anchor source that the segments span; what follows them is not part of the container.
    anchor_end : int
        Bytes of the shortest prefix of the anchor source that all anchors can be decoded from.
    complete : bool
        False if the last segment is cut off behind its anchors: then only anchor decodes are sure to work.
    segments : int
        Number of segments.
    """

    def __init__(
        self,
        source: Readable,
        *,
        residual: Readable | None = None,
        expect: Expect | None = None,
        allow_trailing: bool = False,
    ) -> None:
        if expect is not None:
            instance("expect", expect, Expect, ParamsError)
        self._sources = [open_source(source)]
        try:
            if residual is not None:
                self._sources.append(open_source(residual))
            walks = [walk(each, allow_trailing=allow_trailing) for each in self._sources]
            self._segments = join(walks[0], walks[1] if residual is not None else None)
            first = self._segments[0].header
            self.metadata = dict(first.metadata)
            self.minor = max(segment.header.minor for segment in self._segments)
            self.consumed = walks[0].consumed
            self.anchor_end = walks[0].anchor_end
            self.complete = all(each.complete for each in walks)
            self._size = sum(each.consumed for each in walks)
            self.segments = len(self._segments)
            self._tensors = {
                name: StoredTensor(name, index, self._segments) for index, name in enumerate(first.tensors)
            }
            if expect is not None:
                expect.check(self.metadata, self._tensors)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> StoredTensor:
        if name not in self._tensors:
            have = shown(list(self._tensors))
            raise MissingTensorError(f"the container has no tensor {shown(name)}, it has {have}")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what was opened here; a file object that was passed in stays open."""
        for source in self._sources:
            source.close()

    def __repr__(self) -> str:
        return f"Reader({len(self)} tensors, {self.segments} segments, metadata={self.metadata})"

    @property
    def checked_size(self) -> int:
        """Bytes of all frames that `verify` compares."""
        return sum(
            framed_size(layout, stream)
            for segment in self._segments
            for stream in segment.places
            for layout in segment.header.tensors.values()
        )

    def verify(self, progress: Callable[[int], None] | None = None) -> list[ContainerError]:
        """Compare every frame of the known streams with its checksums.

        Parameters
        ----------
        progress : callable, optional
            Called with the number of bytes done since the last call, of `checked_size` in all.

        Returns
        -------
        list of ContainerError
            What is wrong, at most one entry for each stream of each tensor and segment; empty if all is well.
        """
        found: list[ContainerError] = []
        for number, segment in enumerate(self._segments):
            for stream in segment.places:
                for tensor in self._tensors.values():
                    try:
                        for done in tensor.check(stream, number):
                            if progress is not None:
                                progress(done)
                    except ContainerError as error:
                        found.append(error)
        return found

    def describe(self) -> dict[str, Any]:
        """What the container holds, as JSON types; only headers are read."""
        tensors = {}
        for name, tensor in self.items():
            elements = prod(tensor.shape)
            sizes = {"anchor": tensor.stream_size("anchor")}
            if tensor.has_residual:
                sizes["residual"] = tensor.stream_size("residual")
            tensors[name] = {
                "shape": list(tensor.shape),
                "dtype": tensor.dtype,
                "token_axis": tensor.token_axis,
                "head_dim": tensor.layout.head_dim,
                "first_token": tensor.first_token,
                "params": tensor.params.to_dict(),
                "bytes": sizes,
                "bits_per_element": {k: 8 * v / elements if elements else 0.0 for k, v in sizes.items()},
            }
        return {
            "format": f"{VERSION[0]}.{self.minor}",
            "bytes": self._size,
            "anchor_end": self.anchor_end,
            "complete": self.complete,
            "segments": self.segments,
            "metadata": self.metadata,
            "tensors": tensors,
        }


def open(  # noqa: A001 - the name that users of containers expect
    source: Readable,
    *,
    residual: Readable | None = None,
    expect: Expect | None = None,
    allow_trailing: bool = False,
) -> Reader:
    """Open a container; only its headers are read.

    Parameters
    ----------
    source : path, bytes-like or seekable binary file object
        A whole container, any prefix of one that covers the anchors, or the anchor file of a split one. A path
        is mapped into memory: the file must not be truncated while it is open.
    residual : path, bytes-like or binary file object, optional
        The residual file of a split container.
    expect : Expect, optional
        What the container must be.
    allow_trailing : bool
        Ignore what follows the last segment, as in the oversized buffers of some stores;
        ``Reader.consumed`` says where it begins.

    Returns
    -------
    Reader

    Raises
    ------
    ContainerError
        One of its subclasses for everything that can be wrong, see :mod:`lynxq.errors`.
    OSError
        If a file cannot be opened.

    Examples
    --------
    >>> import io, numpy as np, lynxq
    >>> keys = np.random.default_rng(0).standard_normal((512, 2, 64), dtype=np.float32)
    >>> file = io.BytesIO()
    >>> lynxq.save(file, {"layer.0.key": lynxq.encode(keys, token_axis=0)}, metadata={"model": "toy"})
    >>> with lynxq.open(file) as reader:
    ...     reader["layer.0.key"].decode("anchor", tokens=(100, 164)).shape
    (64, 2, 64)
    """
    return Reader(source, residual=residual, expect=expect, allow_trailing=allow_trailing)


def load(
    source: Readable,
    *,
    tier: Tier = "full",
    names: Iterable[str] | None = None,
    residual: Readable | None = None,
    framework: Library = "numpy",
    dtype: object = None,
    backend: str | None = None,
    expect: Expect | None = None,
    allow_trailing: bool = False,
) -> dict[str, Array]:
    """Decode the tensors of a container.

    Parameters
    ----------
    source, residual, expect, allow_trailing
        As for :func:`open`.
    tier : {"full", "anchor"}
        With "anchor" no residual byte is read.
    names : iterable of str, optional
        The tensors to decode; all by default.
    framework : {"numpy", "torch"}
        Library of the results.
    dtype, backend
        As for :func:`lynxq.decode_anchor`.

    Returns
    -------
    dict of str to array

    Raises
    ------
    ContainerError
        One of its subclasses for everything that can be wrong, see :mod:`lynxq.errors`.
    MissingResidualError
        If the full tier is asked for, and there is no residual stream.
    """
    with open(source, residual=residual, expect=expect, allow_trailing=allow_trailing) as reader:
        if isinstance(names, str):
            raise ParamsError(f"names must be a collection of names, got the string {shown(names)}")
        chosen = [reader[name] for name in (reader if names is None else names)]
        return {
            tensor.name: tensor.decode(tier, dtype=dtype, framework=framework, backend=backend) for tensor in chosen
        }


def describe(
    source: Readable,
    *,
    residual: Readable | None = None,
    expect: Expect | None = None,
    allow_trailing: bool = False,
) -> dict[str, Any]:
    """What a container holds, as JSON types, without reading or decoding any data.

    Parameters
    ----------
    source, residual, expect, allow_trailing
        As for :func:`open`.

    Returns
    -------
    dict
        Format version, sizes, metadata, and for every tensor its shape, dtype, parameters and sizes in bytes.
    """
    with open(source, residual=residual, expect=expect, allow_trailing=allow_trailing) as reader:
        return reader.describe()
