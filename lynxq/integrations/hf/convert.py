"""`from_cache` and `to_cache`: a cache of transformers as encoded tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lynxq.arguments import choice, instance, integer
from lynxq.codec import decode, encode
from lynxq.container import StoredTensor
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError, ParamsError, ShapeError
from lynxq.integrations.hf.layer import ProgressiveLayer
from lynxq.integrations.hf.library import DynamicCache, DynamicLayer, StaticLayer, torch
from lynxq.integrations.hf.names import KINDS, TOKEN_AXIS, layers_of, named_dtype, one_dtype, prefixes, tensor_name
from lynxq.layout import Tier, ceil_div
from lynxq.naming import preset_for
from lynxq.params import Params


def from_cache(
    cache: Any,
    params: Params | Mapping[str, Params] | None = None,
    *,
    first_token: int = 0,
    backend: str | None = None,
) -> dict[str, Encoded]:
    """Encode the keys and values of all layers of a cache.

    Parameters
    ----------
    cache : transformers.DynamicCache, StaticCache or ProgressiveCache
        With full attention in all layers. It is not changed.
    params : Params or mapping of str to Params, optional
        Of all tensors, or of the tensors named; ``Params.keys()`` for keys and ``Params.values()`` for values by
        default.
    first_token : int
        Encode the tokens from this one on, for :func:`lynxq.append`: those before it are stored already, and what was
        decoded must not be coded again.
    backend : str, optional
        As for :func:`lynxq.encode`.

    Returns
    -------
    dict of str to Encoded
        ``layer.{i}.key`` and ``layer.{i}.value``, of shape ``[batch, heads, tokens, head dim]``, token axis 2. Their
        streams are torch tensors.

    Raises
    ------
    DTypeError
        If a layer is of another kind: one with a sliding window has not all tokens, a quantized one would be
        quantized twice.
    ShapeError
        If a layer is empty, or has fewer tokens than `first_token`.
    ParamsError
        If `params` names a tensor that is not there, or lacks one.
    """
    torch()
    layers = getattr(cache, "layers", None)
    if not isinstance(layers, list) or not layers:
        raise DTypeError(f"expected a cache of transformers with at least one layer, got {type(cache).__name__}")
    start = integer("first_token", first_token, 0, 1 << 48)
    states = {
        tensor_name(index, kind): tensor
        for index, layer in enumerate(layers)
        for kind, tensor in zip(KINDS, _states(index, layer, start), strict=True)
    }
    chosen = _chosen(params, states)
    return {
        name: encode(tensor, chosen[name], token_axis=TOKEN_AXIS, first_token=start, backend=backend)
        for name, tensor in states.items()
    }


def _states(index: int, layer: Any, start: int) -> tuple[Any, Any]:
    """Keys and values of a layer, from a token on."""
    kind = type(layer)
    if kind not in {DynamicLayer, StaticLayer, ProgressiveLayer}:
        raise DTypeError(
            f"layers must have full attention and unquantized keys and values, layer {index} is a {kind.__name__}"
        )
    if kind is ProgressiveLayer and start < layer.prefix:
        raise DTypeError(
            f"tokens before {layer.prefix} of layer {index} were decoded by lynxq: coding them again would lose twice"
        )
    length = int(layer.get_seq_length())
    if not length or length < start:
        raise ShapeError(f"layer {index} must have tokens from {start} on, it has {length}")
    return layer.keys[:, :, start:length], layer.values[:, :, start:length]


def _chosen(params: Params | Mapping[str, Params] | None, names: Mapping[str, Any]) -> Mapping[str, Params]:
    if params is None:
        return {tensor_name(layer, kind): preset_for(kind) for layer in range(layers_of(names)) for kind in KINDS}
    if isinstance(params, Params):
        return dict.fromkeys(names, params)
    instance("params", params, Mapping, DTypeError)
    for name in [*names, *params]:
        if (name in names) != (name in params):
            raise ParamsError(f"params must be for all tensors of the cache and no others, {name!r} is not in both")
    return params


def to_cache(
    tensors: Mapping[str, Encoded | StoredTensor],
    *,
    tier: Tier = "full",
    tokens: int | None = None,
    dtype: object = None,
    device: object = None,
    backend: str | None = None,
) -> Any:
    """Decode keys and values into a cache that a model can go on from.

    Parameters
    ----------
    tensors : mapping of str to Encoded or StoredTensor
        As :func:`from_cache` makes it, or an open container. Of one, segment by segment, only the pages that are
        needed are read.
    tier : {"full", "anchor"}
        With "anchor" no residual is read or needed.
    tokens : int, optional
        Decode the first tokens only.
    dtype : torch.dtype or str, optional
        Of the cache, which must be the model's; that of the encoded tensors by default.
    device : torch.device or str, optional
        Of the cache; the CPU by default.
    backend : str, optional
        As for :func:`lynxq.decode_anchor`.

    Returns
    -------
    transformers.DynamicCache

    Raises
    ------
    ShapeError
        If the tensors are not those of a cache, or have fewer tokens.
    DTypeError
        If they have several dtypes, and `dtype` is not given.
    MissingResidualError
        If the full tier is asked for, and a tensor has no residual.
    ContainerError
        For everything that can be wrong with a container.
    """
    library = torch()
    choice("tier", tier, Tier)
    found = prefixes(tensors)
    if dtype is None:
        one_dtype(tensors, found)
    length = found[0][0].tokens
    count = length if tokens is None else integer("tokens", tokens, 0, length)
    chosen = None if dtype is None else named_dtype(library, dtype)
    cache = DynamicCache()
    for index in range(len(found)):
        keys, values = (
            library.as_tensor(_decoded(tensors[tensor_name(index, kind)], tier, count, chosen, backend), device=device)
            for kind in KINDS
        )
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def _decoded(tensor: Encoded | StoredTensor, tier: Tier, tokens: int, dtype: Any, backend: str | None) -> Any:
    """The first tokens of a tensor."""
    if isinstance(tensor, StoredTensor):
        return tensor.decode(tier, tokens=(0, tokens), dtype=dtype, framework="torch", backend=backend)
    part = tensor
    if tokens < tensor.layout.tokens:
        part = tensor.pages(0, min(ceil_div(tokens, tensor.params.page), tensor.layout.pages))
    whole = decode(part.to_host().to("torch"), tier, dtype=dtype, backend=backend)
    return whole[:, :, :tokens]
