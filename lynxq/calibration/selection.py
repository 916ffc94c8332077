"""Selection of parameters for the tensors of a model within a budget: `calibrate`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from lynxq import naming
from lynxq.arguments import choice, integer, real
from lynxq.arrays import Array
from lynxq.calibration.allocation import allocate
from lynxq.calibration.data import Tensor, load
from lynxq.calibration.measure import attention_error, centred_error
from lynxq.calibration.result import Calibration, Entry
from lynxq.calibration.sampling import Sample, attention_samples, centred_samples
from lynxq.calibration.search import Fixed, Option, options, preset
from lynxq.calibration.sensitivity import load_layers
from lynxq.errors import ParamsError
from lynxq.evaluate import RowKind
from lynxq.naming import Kind
from lynxq.params import CODE_BITS, MAX_PAGE, Axis, Params

Per = Literal["kind", "layer"]
_Group = tuple[RowKind, int | None]
_Axes = Mapping[RowKind, tuple[Axis, ...]]

#: Axes that are tried without queries: that of the preset alone. The error of a tensor cannot tell which is better.
_PRESET_AXES: _Axes = {"key": ("token",), "value": ("channel",), "other": ("token",)}
_ALL_AXES: tuple[Axis, ...] = ("token", "channel")


def calibrate(
    tensors: Mapping[str, Array] | Iterable[tuple[str, Array]],
    queries: Mapping[str, Array] | Iterable[tuple[str, Array]] | None = None,
    budget_bits: float | None = None,
    *,
    token_axis: int,
    head_dim: int | None = None,
    per: Per = "kind",
    pages: Sequence[int] = (256,),
    sink_tokens: int = 4,
    code_bits: int = CODE_BITS,
    sample_tokens: int = 1024,
    kind_of: Callable[[str], Kind | None] = naming.kind_of,
    layer_of: Callable[[str], int | None] = naming.layer_of,
) -> Calibration:
    """Choose grouping, companding, split, metadata and anchor points for keys and values within a budget of bits.

    Parameters
    ----------
    tensors : mapping or iterable of (name, array), arrays of shape (outer…, tokens, inner…)
        A cache of float32, float16 or bfloat16, numpy or CPU torch; some thousand tokens of typical text. It is
        held in float32.
    queries : mapping or iterable of (name, array), optional
        Queries of some layers, after the position embedding; axes as those of the keys, with a multiple of their
        heads, of the last positions if they are fewer than the keys. With them the error of attention outputs is
        minimised, otherwise the centred vNMSE. Layers without queries then follow the others.
    budget_bits : float, optional
        Most bits per element that the anchors of all tensors together may take, everything stored counted; what
        the presets take by default. The residual of an anchor of a bits has `code_bits` - a.
    token_axis : int
        The axis of tokens, in all tensors.
    head_dim : int, optional
        Channels of one head, where the last axis holds several.
    per : {"kind", "layer"}
        One choice for all keys and one for all values, or one for each layer besides.
    pages : sequence of int
        Page sizes to choose from. All tensors get the same one: pages are the unit of transfer.
    sink_tokens : int
        Tokens that are kept verbatim, for all tensors; it is not searched, since no error of tensors shows what
        they are good for.
    code_bits : int
        Bits of anchor and residual codes together, 6 to 8. Each bit less makes the residual, and a transfer of both,
        smaller by a bit, and the full decode's vNMSE four times as large.
    sample_tokens : int
        Tokens of each tensor that the search looks at, in blocks spread evenly.
    kind_of, layer_of : callable
        From a tensor's name to "key", "value" or None, and to the number of its layer or None.

    Returns
    -------
    Calibration
        Indexed by names of tensors it gives `Params`. On one machine, equal arguments give equal results. If the
        presets fit the budget and are not worse, they are the result.

    Raises
    ------
    ParamsError
        If the budget is too small for any parameters, or an argument is out of its range.
    DTypeError, ShapeError, NonFiniteError
        If a tensor cannot be coded, or queries do not fit; a note (``__notes__``) names it.

    Notes
    -----
    What pays, and what does not, was measured on text that was not calibrated on: see the page on calibration.

    Examples
    --------
    >>> import numpy as np, lynxq
    >>> rng = np.random.default_rng(0)
    >>> cache = {f"layer.0.{kind}": rng.standard_normal((512, 2, 64), np.float32) for kind in ("key", "value")}
    >>> found = lynxq.calibrate(cache, token_axis=0)
    >>> found.bits_per_element <= found.preset_bits, found.error < found.preset_error
    (True, True)
    """
    choice("per", per, Per)
    sizes = sorted({integer("pages", page, 8, MAX_PAGE, ParamsError) for page in pages})
    if not sizes:
        raise ParamsError("pages must have a size, got none")
    # The presets, which every choice is compared with, have anchors of 4 bits, and a residual has at least 2.
    bits = integer("code_bits", code_bits, 6, CODE_BITS, ParamsError)
    count = integer("sample_tokens", sample_tokens, 1, 1 << 48, ParamsError)
    data = load(tensors, kind_of, layer_of, token_axis=token_axis, head_dim=head_dim)
    layers = None if queries is None else load_layers(data, queries, layer_of)
    fixed = [Fixed(page, sink_tokens, bits) for page in sizes]
    presets = {tensor.name: preset(tensor, _nearest(fixed)) for tensor in data}
    preset_bits = _bits(data, presets)
    budget = preset_bits if budget_bits is None else real("budget_bits", budget_bits, 0.0, exclusive=True)
    block = max(512, *sizes)
    if layers is None:
        samples = centred_samples(data, size=block, wanted=count)
    else:
        _check_kinds(data)
        samples = attention_samples(layers, size=block, wanted=count, sink_tokens=sink_tokens)
    axes = _PRESET_AXES if layers is None else dict.fromkeys(_PRESET_AXES, _ALL_AXES)
    found = [_assigned(samples, budget, per, axes, one) for one in fixed]
    best = min((item for item in found if item is not None), key=lambda item: item[0], default=None)
    if best is None:
        least = min(_least_bits(samples, axes, one) for one in fixed)
        raise ParamsError(
            f"budget_bits must leave room for the smallest parameters, {least:.4g} bits for these tensors, "
            f"got {budget:g}"
        )

    def measured(params: Mapping[str, Params]) -> float:
        if layers is None:
            return centred_error(data, lambda tensor: params[tensor.name])
        return attention_error(layers, lambda tensor: params[tensor.name])

    chosen = best[1]
    by_name = {tensor.name: chosen.get((tensor.kind, tensor.layer)) or chosen[tensor.kind, None] for tensor in data}
    error, preset_error = measured(by_name), measured(presets)
    if _fits(preset_bits, budget) and (preset_error <= error or not _fits(_bits(data, by_name), budget)):
        chosen = {(tensor.kind, None): presets[tensor.name] for tensor in data}
        by_name, error = presets, preset_error
    return Calibration(
        entries=_entries(data, chosen),
        objective="centred_vnmse" if layers is None else "attention",
        budget_bits=budget,
        bits_per_element=_bits(data, by_name),
        error=error,
        preset_bits=preset_bits,
        preset_error=preset_error,
    )


def _fits(bits: float, budget: float) -> bool:
    return bits <= budget * (1 + 1e-12)


def _check_kinds(data: Sequence[Tensor]) -> None:
    for tensor in data:
        if tensor.kind == "other":
            raise ParamsError(f"with queries every tensor must be of keys or values by its name, got {tensor.name!r}")


def _groups(samples: Sequence[Sample], per: Per) -> dict[_Group, list[Sample]]:
    groups: dict[_Group, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.tensor.kind, sample.tensor.layer if per == "layer" else None].append(sample)
    return dict(groups)


def _assigned(
    samples: Sequence[Sample], budget: float, per: Per, axes: _Axes, fixed: Fixed
) -> tuple[float, dict[_Group, Params]] | None:
    """Expected error and parameters for every group with some page; None if the budget is too small."""
    limit = budget * sum(sample.tensor.layout.elements for sample in samples) / 8
    chosen: dict[_Group, Params] = {}
    total = 0.0
    # The choice for kinds is made in any case: it serves layers that are not in the data.
    for level in dict.fromkeys(("kind", per)):
        groups = _groups(samples, level)
        found: dict[_Group, list[Option]] = {
            group: options(members, axes[group[0]], fixed) for group, members in groups.items()
        }
        picks = allocate([[(o.nbytes, o.error) for o in choices] for choices in found.values()], limit)
        if picks is None:
            return None
        taken = {group: choices[pick] for (group, choices), pick in zip(found.items(), picks, strict=True)}
        chosen |= {group: option.params for group, option in taken.items()}
        total = sum(option.error for option in taken.values())
    return total, chosen


def _least_bits(samples: Sequence[Sample], axes: _Axes, fixed: Fixed) -> float:
    """Bits per element of the smallest parameters of every kind."""
    groups = _groups(samples, "kind").items()
    found = [options(members, axes[group[0]], fixed) for group, members in groups]
    smallest = sum(min(option.nbytes for option in choices) for choices in found)
    return 8 * smallest / sum(sample.tensor.layout.elements for sample in samples)


def _nearest(choices: Sequence[Fixed]) -> Fixed:
    """The pages for the presets: their own if these are allowed."""
    return min(choices, key=lambda one: (abs(one.page - Params().page), one.page))


def _bits(data: Sequence[Tensor], params: Mapping[str, Params]) -> float:
    elements = sum(tensor.layout.elements for tensor in data)
    return 8.0 * sum(tensor.nbytes(params[tensor.name]) for tensor in data) / elements


def _entries(data: Sequence[Tensor], chosen: Mapping[_Group, Params]) -> tuple[Entry, ...]:
    entries = []
    for kind, layer in sorted(chosen, key=lambda group: (group[0], -1 if group[1] is None else group[1])):
        params = chosen[kind, layer]
        tensors = [t for t in data if t.kind == kind and layer in (None, t.layer)]
        bits = _bits(tensors, {tensor.name: params for tensor in tensors})
        entries.append(Entry(kind=kind, layer=layer, params=params, bits_per_element=bits))
    return tuple(entries)
