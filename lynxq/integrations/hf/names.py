"""How the tensors of a cache are named, and what a set of them must be to make a cache."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lynxq import dtypes
from lynxq.arguments import instance, integer, shown
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError, ShapeError
from lynxq.layout import Layout
from lynxq.naming import Kind

KINDS: tuple[Kind, Kind] = ("key", "value")
TOKEN_AXIS = 2

_NAME = re.compile(r"layer\.(0|[1-9][0-9]{0,5})\.(key|value)")


class Described(Protocol):
    """What says of a tensor what it is: a `StoredTensor`, and anything else with these properties."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def dtype(self) -> str: ...  # noqa: D102
    @property
    def token_axis(self) -> int: ...  # noqa: D102
    @property
    def first_token(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class Prefix:
    """The keys or the values of a prefix of a sequence: shape ``[batch, heads, tokens, head dim]``, dtype."""

    shape: tuple[int, int, int, int]
    dtype: str

    @property
    def tokens(self) -> int:
        """Tokens of the prefix."""
        return self.shape[TOKEN_AXIS]


def tensor_name(layer: int, kind: Kind) -> str:
    """Name of a layer's keys or values in a container.

    Examples
    --------
    >>> from lynxq.integrations.hf import tensor_name
    >>> tensor_name(7, "value")
    'layer.7.value'
    """
    return f"layer.{integer('layer', layer, 0, 1 << 20)}.{kind}"


def place_of(name: str) -> tuple[int, int]:
    """Layer of a tensor, and 0 for keys or 1 for values; raises `ShapeError` for another name."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ShapeError(f"tensors of a cache are named layer.<number>.key or layer.<number>.value, got {shown(name)}")
    return int(match[1]), KINDS.index(match[2])


def layers_of(names: Iterable[str]) -> int:
    """Number of layers of a set of names; raises `ShapeError` unless it is the keys and values of layers 0, 1, …."""
    given = {place_of(name) for name in names}
    layers = 1 + max((layer for layer, _ in given), default=-1)
    for layer in range(layers):
        for which, kind in enumerate(KINDS):
            if (layer, which) not in given:
                raise ShapeError(f"a cache of {layers} layers needs {tensor_name(layer, kind)!r}, which is not there")
    if not layers:
        raise ShapeError("a cache needs at least one layer, got no tensors")
    return layers


def prefixes(tensors: Mapping[str, Layout | Encoded | Described]) -> list[tuple[Prefix, Prefix]]:
    """Keys and values of every layer, checked to be those of one prefix.

    Raises
    ------
    DTypeError
        If it is no mapping, or of something else.
    ShapeError
        If a layer is missing, or a tensor is not of the layout of a cache, or they differ in batch or tokens.
    """
    instance("tensors", tensors, Mapping, DTypeError)
    for name, tensor in tensors.items():
        if not hasattr(tensor, "first_token") and not hasattr(tensor, "layout"):
            raise DTypeError(
                f"{shown(name)} must be an Encoded, a Layout or a StoredTensor, got {type(tensor).__name__}"
            )
    count = layers_of(tensors)
    found = [
        tuple(_prefix(tensor_name(i, kind), tensors[tensor_name(i, kind)]) for kind in KINDS) for i in range(count)
    ]
    first = found[0][0]
    for layer, pair in enumerate(found):
        for kind, one in zip(KINDS, pair, strict=True):
            name = tensor_name(layer, kind)
            if (one.shape[0], one.tokens) != (first.shape[0], first.tokens):
                raise ShapeError(
                    f"all tensors of a cache must have one batch size and length, "
                    f"but {name!r} has shape {one.shape} and 'layer.0.key' {first.shape}"
                )
            if one.shape[1] != pair[0].shape[1]:
                raise ShapeError(
                    f"keys and values of a layer must have one number of heads, "
                    f"but {name!r} has shape {one.shape} and {tensor_name(layer, 'key')!r} {pair[0].shape}"
                )
    return found  # type: ignore[return-value]


def one_dtype(tensors: Mapping[str, Layout | Encoded | Described], found: list[tuple[Prefix, Prefix]]) -> None:
    """Raise `DTypeError` unless all tensors are of one dtype: a model computes in one, and would fail in the middle."""
    first = found[0][0].dtype
    for name in tensors:
        layer, which = place_of(name)
        if found[layer][which].dtype != first:
            raise DTypeError(
                f"all tensors of a cache must have one dtype unless `dtype` is given, "
                f"but {name!r} is {found[layer][which].dtype} and 'layer.0.key' {first}"
            )


def _prefix(name: str, tensor: Layout | Encoded | Described) -> Prefix:
    layout = tensor.layout if isinstance(tensor, Encoded) else tensor
    first, shape, axis = layout.first_token, tuple(layout.shape), layout.token_axis
    if len(shape) != 4 or axis != TOKEN_AXIS:
        raise ShapeError(
            f"{name!r} must have shape [batch, heads, tokens, head dim] and token axis 2, "
            f"got shape {shape} and token axis {axis}"
        )
    if first:
        raise ShapeError(f"{name!r} must begin with token 0 of its sequence, it begins with token {first}")
    if isinstance(layout, Layout) and layout.tokens != shape[TOKEN_AXIS]:
        raise ShapeError(
            f"{name!r} must hold {shape[TOKEN_AXIS]} valid tokens like its shape, it holds {layout.tokens}"
        )
    dtype = layout.dtype if isinstance(layout.dtype, str) else layout.dtype.name
    return Prefix((shape[0], shape[1], shape[2], shape[3]), dtype)


def named_dtype(torch: object, dtype: object) -> object:
    """The torch dtype of a name or dtype that lynxq decodes to."""
    try:
        return getattr(torch, dtypes.named(dtype).name)
    except DTypeError:
        raise DTypeError(f"a cache must be float32, float16 or bfloat16, got {shown(dtype)}") from None
