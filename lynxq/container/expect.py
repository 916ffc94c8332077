"""`Expect`: what a container must be for a caller to use it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lynxq import dtypes
from lynxq.arguments import instance, shown
from lynxq.container.stored import StoredTensor
from lynxq.errors import IdentityError, ParamsError
from lynxq.params import Params


@dataclass(frozen=True, kw_only=True)
class Expect:
    """What a container must be; anything else is refused with `IdentityError` before data is read.

    A cache of another model decodes without an error and makes a model talk nonsense. Whoever stores caches
    under keys that may collide, or reads files of others, states here what the cache must be.

    Parameters
    ----------
    metadata : mapping of str to str
        Entries that the container's metadata must have; it may have more.
    dtype : str, optional
        dtype of every tensor.
    params : Params or mapping of str to Params, optional
        Parameters of every tensor, or of the tensors named.
    shapes : mapping of str to tuple of int
        Shapes of the tensors named, over all segments.
    names : collection of str, optional
        The tensors there must be, no more and no fewer.

    Examples
    --------
    >>> Expect(metadata={"model": "smollm2-135m"}, dtype="bfloat16").dtype
    'bfloat16'
    """

    metadata: Mapping[str, str] = field(default_factory=dict)
    dtype: str | None = None
    params: Params | Mapping[str, Params] | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    names: Collection[str] | None = None

    def __post_init__(self) -> None:
        for what, value in (("metadata", self.metadata), ("shapes", self.shapes)):
            instance(what, value, Mapping, ParamsError)
        if self.dtype is not None:
            object.__setattr__(self, "dtype", dtypes.named(self.dtype).name)
        if self.params is not None and not isinstance(self.params, Params | Mapping):
            raise ParamsError(f"params must be a Params or a mapping of names to them, got {shown(self.params)}")
        if isinstance(self.names, str):
            raise ParamsError(f"names must be a collection of names, got the string {shown(self.names)}")
        for shape in self.shapes.values():
            if not isinstance(shape, tuple | list):
                raise ParamsError(f"a shape must be a tuple of integers, got {shown(shape)}")

    def check(self, metadata: Mapping[str, str], tensors: Mapping[str, StoredTensor]) -> None:
        """Raise `IdentityError` unless a container with this metadata and these tensors is as expected."""
        for key, value in self.metadata.items():
            _same(f"metadata {key!r}", value, metadata.get(key))
        if self.names is not None:
            _same("tensor names", sorted(self.names), sorted(tensors))
        for name, tensor in tensors.items():
            if self.dtype is not None:
                _same(f"dtype of {name!r}", self.dtype, tensor.dtype)
            if isinstance(self.params, Params):
                _same(f"params of {name!r}", self.params, tensor.params)
        if isinstance(self.params, Mapping):
            for name, params in self.params.items():
                _same(f"params of {name!r}", params, tensors[name].params if name in tensors else None)
        for name, shape in self.shapes.items():
            _same(f"shape of {name!r}", tuple(shape), tensors[name].shape if name in tensors else None)


def _same(what: str, expected: object, found: object) -> None:
    if expected != found:
        raise IdentityError(f"{what} must be {shown(expected)}, got {shown(found)}")
