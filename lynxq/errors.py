"""Every documented failure has a class of its own under :class:`LynxqError`.

Argument errors also derive from the builtin that Python users expect (``ValueError`` or ``TypeError``),
container errors from :class:`ContainerError`. Messages are one sentence and show the offending value.
"""

from __future__ import annotations


class LynxqError(Exception):
    """Base of every error that lynxq raises on purpose."""


# --- arguments -------------------------------------------------------------------------------------


class ParamsError(LynxqError, ValueError):
    """A parameter is out of its range or not one of its choices, or two parameters do not fit each other."""


class ShapeError(LynxqError, ValueError):
    """A shape, axis, token count or buffer size does not fit the tensor."""


class DTypeError(LynxqError, TypeError):
    """An array's type, dtype, byte order or device is not one that lynxq codes."""


class NonFiniteError(LynxqError, ValueError):
    """The input holds NaN or infinity.

    Attributes
    ----------
    count : int
        Number of non-finite values.
    first_index : tuple of int
        Index of the first one, in the shape of the input.
    """

    def __init__(self, count: int, first_index: tuple[int, ...]) -> None:
        super().__init__(
            f"input has {count} non-finite value{'s' if count != 1 else ''}, the first at index {first_index}"
        )
        self.count = count
        self.first_index = first_index

    def __reduce__(self) -> tuple[type, tuple[int, tuple[int, ...]]]:
        return type(self), (self.count, self.first_index)


class DistributionError(LynxqError, ValueError):
    """A row is no probability distribution, or a token cannot have been drawn from the one that it came with."""


class BackendError(LynxqError, RuntimeError):
    """The backend asked for does not exist or cannot run here."""


class MissingLibraryError(LynxqError, ImportError):
    """A library that an optional part of lynxq needs is not installed."""


class DownloadError(LynxqError, OSError):
    """A file cannot be downloaded, or what came is not what it should be."""


class ModelError(LynxqError, ValueError):
    """A language model cannot be loaded, or is of a kind that lynxq cannot look into."""


class UnsupportedCacheError(LynxqError, ValueError):
    """The KV cache of an engine is of a kind that an integration does not handle."""


class MissingResidualError(LynxqError, ValueError):
    """A full decode was asked for, but there is no residual stream."""


class CacheNotReadyError(LynxqError, RuntimeError):
    """A forward pass needs an anchor that has not arrived, or never will; see :class:`ProgressiveCache`."""


class WorkerError(LynxqError, RuntimeError):
    """A process of the end-to-end demonstration has failed or ended."""


class TensorFileError(LynxqError):
    """A file is not a safetensors file, or has a tensor that numpy cannot hold."""


# --- containers ------------------------------------------------------------------------------------


class ContainerError(LynxqError):
    """Base of everything that can be wrong with a container or a frame."""


class SourceError(ContainerError, TypeError):
    """What a container shall be read from or written to is not something for bytes, or it is closed."""


class WriterError(ContainerError, ValueError):
    """A container cannot be written in that way: closed writer, name given twice, one file for both streams."""


class MissingTensorError(ContainerError, KeyError):
    """The container has no tensor of that name."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class NotLynxError(ContainerError):
    """The data does not begin with the magic bytes."""


class TextModeError(NotLynxError):
    """The magic bytes went through a text-mode transfer that changed line ends."""


class VersionError(ContainerError):
    """The container has a major version that this reader does not know."""


class TruncatedError(ContainerError):
    """The data ends before the part that is asked for.

    Attributes
    ----------
    needed, available : int
        Bytes needed, and bytes there are.
    """

    def __init__(self, what: str, needed: int, available: int) -> None:
        super().__init__(f"{what} needs {needed} bytes, but only {available} are there")
        self.what = what
        self.needed = needed
        self.available = available

    def __reduce__(self) -> tuple[type, tuple[str, int, int]]:
        return type(self), (self.what, self.needed, self.available)


class HeaderChecksumError(ContainerError):
    """The checksum of a segment header does not match its bytes."""


class HeaderError(ContainerError):
    """A segment header has a right checksum but breaks a rule of the format."""


class ReservedError(ContainerError):
    """A reserved field or bit is not zero."""


class LimitError(ContainerError):
    """A size or count is over the format's cap."""


class FrameError(ContainerError):
    """A frame header is damaged or is not the one that belongs at its place."""


class AnchorChecksumError(ContainerError):
    """The payload of an anchor frame is damaged."""


class ResidualChecksumError(ContainerError):
    """The payload of a residual frame is damaged; the anchor is still usable."""


class ResidualMismatchError(ContainerError):
    """A residual frame belongs to another anchor page than the one it is used with."""


class MissingAnchorError(ContainerError):
    """The container holds no anchor stream, without which nothing can be decoded."""


class StreamKindError(ContainerError):
    """The container has a critical stream kind that this reader does not know."""


class TrailingBytesError(ContainerError):
    """Bytes follow the last segment, and the caller did not allow that."""


class SegmentError(ContainerError):
    """A segment does not continue the tensors of the segment before it."""


class IdentityError(ContainerError):
    """The container is sound, but it is not what the caller expects."""


# --- transfers -------------------------------------------------------------------------------------


class TransferError(LynxqError):
    """Base of everything that can go wrong with a transfer."""


class ProtocolError(TransferError):
    """The peer broke a rule of the wire, or its bytes were damaged on the way: the connection is of no more use."""


class PeerError(TransferError):
    """The peer ended the connection, and said why."""


class RequestError(TransferError):
    """A request ended before all of its pages were here.

    Attributes
    ----------
    name : str
        What was asked for.
    code : int
        Why; a code of docs/wire.md.
    """

    def __init__(self, name: str, code: int, reason: str) -> None:
        super().__init__(f"the request for {name!r} ended: {reason}")
        self.name = name
        self.code = code
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.name, self.code, self.reason)


class SourceFailedError(TransferError):
    """A source of pages cannot go on."""


class IncompleteError(TransferError):
    """Pages are asked for that have not arrived, or that arrived damaged each time."""


class ConnectionLostError(TransferError, ConnectionError):
    """The connection was lost, and could not be made again."""


class SilenceError(ConnectionLostError, TimeoutError):
    """The peer said nothing, or took nothing, for longer than is allowed."""
