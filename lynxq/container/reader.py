"""`Reader`: an open container."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import product
from math import prod
from types import TracebackType
from typing import Any, Self

from lynxq.arguments import choice, instance, shown
from lynxq.container.expect import Expect
from lynxq.container.opening import open_source
from lynxq.container.ranges import Range, needed
from lynxq.container.segments import join, walk
from lynxq.container.source import Readable, Source
from lynxq.container.stored import StoredTensor
from lynxq.errors import ContainerError, MissingTensorError, ParamsError
from lynxq.format.header import VERSION, framed_size
from lynxq.layout import Tier

#: Bytes behind a URL that are held at a time while all tensors are read.
_BATCH = 1 << 28


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

    def ranges(
        self, names: Iterable[str], tier: Tier = "full", tokens: tuple[int, int] | None = None
    ) -> list[tuple[Source, Range]]:
        """Which bytes decodes of some tensors read, for those who fetch them in their own way.

        Parameters
        ----------
        names, tier, tokens
            As for :meth:`fetched`.

        Returns
        -------
        list of (Source, (int, int))
            A source of this reader, and the first byte of a range of it and the one after the last.
        """
        found = []
        for name in names:
            self[name]  # an unknown name is told here
            found += needed(self._segments, name, tier, tokens)
        return found

    @contextmanager
    def fetched(
        self, names: Iterable[str], tier: Tier = "full", tokens: tuple[int, int] | None = None
    ) -> Iterator[None]:
        """Hold what decodes of some tensors read while the block runs.

        What lies behind a URL is fetched at once, with few large requests at the same time, instead of with one or
        two requests for each decode. For everything else this does nothing.

        Parameters
        ----------
        names : iterable of str
            The tensors.
        tier, tokens
            As for :meth:`StoredTensor.decode`.

        Raises
        ------
        MissingTensorError
            If there is no tensor of a name.
        TruncatedError, OSError
            If the bytes cannot be read.

        Examples
        --------
        >>> import io, numpy as np, lynxq
        >>> file = io.BytesIO()
        >>> lynxq.save(file, {"key": lynxq.encode(np.ones((512, 2, 64), np.float32), token_axis=0)})
        >>> with lynxq.open(file) as reader, reader.fetched(["key"], "anchor", tokens=(0, 256)):
        ...     reader["key"].decode("anchor", tokens=(0, 256)).shape
        (256, 2, 64)
        """
        choice("tier", tier, Tier)
        chosen = [self[name].name for name in names]
        wanted: dict[Source, list[Range]] = {source: [] for source in self._sources if source.slow}
        for source, each in self.ranges(chosen, tier, tokens) if wanted else ():
            if source in wanted:
                wanted[source].append(each)
        with ExitStack() as stack:
            for source, ranges in wanted.items():
                stack.enter_context(source.fetched(ranges))
            yield

    def batches(self, names: Iterable[str], tier: Tier) -> Iterator[list[str]]:
        """Names in groups, in order, each as large as should be held at a time by `fetched`: 256 MiB or one tensor."""
        batch: list[str] = []
        size = 0
        for name in names:
            batch.append(name)
            size += self[name].tier_size(tier)
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

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
        for batch in self.batches(self._tensors, "full"):
            with self.fetched(batch):
                for number, segment in enumerate(self._segments):
                    for stream, name in product(segment.places, batch):
                        try:
                            for done in self._tensors[name].check(stream, number):
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
