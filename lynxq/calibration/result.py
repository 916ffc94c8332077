"""`Calibration`: which parameters a calibration chose for which tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

from lynxq import naming
from lynxq.arguments import choice, instance, integer, real, shown
from lynxq.errors import ParamsError
from lynxq.evaluate import Method, RowKind
from lynxq.naming import Kind
from lynxq.params import Params

Objective = Literal["centred_vnmse", "attention"]

#: What marks the JSON, and the version of its form.
_FORMAT, _VERSION = "lynxq calibration", 1

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Parameters of the tensors of a kind, or of those of one layer.

    Attributes
    ----------
    kind : {"key", "value", "other"}
        "other" is what is neither by its name.
    layer : int or None
        None for all layers that have no entry of their own.
    params : Params
    bits_per_element : float
        Bits of the anchors of these tensors, every stored byte counted.
    """

    kind: RowKind
    layer: int | None
    params: Params
    bits_per_element: float

    def __post_init__(self) -> None:
        choice("kind", self.kind, RowKind)
        if self.layer is not None:
            integer("layer", self.layer, 0, 1 << 48, ParamsError)
        instance("params", self.params, Params, ParamsError)
        real("bits_per_element", self.bits_per_element, 0.0)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What :func:`lynxq.calibrate` chose; immutable.

    Indexed by the name of a tensor it gives the parameters: ``lynxq.encode(x, calibration["layer.3.key"], …)``.

    Attributes
    ----------
    entries : tuple of Entry
        At most one for each kind and layer.
    objective : {"centred_vnmse", "attention"}
        What was minimised, for the decode from anchors.
    budget_bits : float
        Most bits per element that the anchors of all tensors together were allowed.
    bits_per_element, error : float
        Bits that they take, and the objective that was measured with them on the whole data: the mean over tensors
        (of the centred vNMSE) or layers (of the attention-output error).
    preset_bits, preset_error : float
        The same with the presets.

    Raises
    ------
    ParamsError
        If two entries are for the same tensors, or a value is out of its range.

    Examples
    --------
    >>> import numpy as np, lynxq
    >>> rng = np.random.default_rng(0)
    >>> cache = {f"layer.0.{kind}": rng.standard_normal((512, 2, 64), np.float32) for kind in ("key", "value")}
    >>> found = lynxq.calibrate(cache, token_axis=0, budget_bits=4.8)
    >>> found.bits_per_element <= 4.8
    True
    >>> encoded = lynxq.encode(cache["layer.0.key"], found["layer.0.key"], token_axis=0)
    >>> lynxq.calibration.Calibration.from_json(found.to_json()) == found
    True
    """

    entries: tuple[Entry, ...]
    objective: Objective
    budget_bits: float
    bits_per_element: float
    error: float
    preset_bits: float
    preset_error: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(self.entries))
        for entry in self.entries:
            instance("entries", entry, Entry, ParamsError)
        choice("objective", self.objective, Objective)
        for name in ("budget_bits", "bits_per_element", "error", "preset_bits", "preset_error"):
            if getattr(self, name) != math.inf:
                real(name, getattr(self, name), 0.0)
        if not self.entries:
            raise ParamsError("a calibration must have an entry, got none")
        places = [(entry.kind, entry.layer) for entry in self.entries]
        for place in places:
            if places.count(place) > 1:
                raise ParamsError(f"a calibration must have one entry for {_named(*place)}, got several")

    def params(self, kind: Kind | None, layer: int | None = None) -> Params:
        """Parameters for a kind of tensor and a layer: those of the layer, or else those of the kind.

        Parameters
        ----------
        kind : {"key", "value"} or None
            As :func:`lynxq.naming.kind_of` gives it.
        layer : int, optional

        Raises
        ------
        ParamsError
            If there are none for this kind.
        """
        for place in ((kind or "other", layer), (kind or "other", None)):
            for entry in self.entries:
                if (entry.kind, entry.layer) == place:
                    return entry.params
        raise ParamsError(f"the calibration has no parameters for {_named(kind or 'other', layer)}")

    def __getitem__(self, name: str) -> Params:
        """Parameters for a tensor, by its name."""
        return self.params(naming.kind_of(name), naming.layer_of(name))

    def method(self, name: str = "calibrated") -> Method:
        """A method for :func:`lynxq.evaluate.evaluate` that codes with these parameters.

        Parameters
        ----------
        name : str
            Its name in the table.
        """
        layers = {(entry.kind, entry.layer): entry.params for entry in self.entries if entry.layer is not None}
        keys, values = (self._default(kind) for kind in ("key", "value"))
        title = f"calibrated for {self.bits_per_element:.2f} bits"
        return Method(name, title, keys, values, layers)

    def _default(self, kind: RowKind) -> Params:
        """What codes tensors of a kind in layers without an entry; the preset if there is nothing for the kind."""
        for wanted in (kind, "other"):
            for entry in self.entries:
                if (entry.kind, entry.layer) == (wanted, None):
                    return entry.params
        return naming.preset_for("value" if kind == "value" else "key")

    def to_json(self) -> str:
        """The calibration as a JSON object, one entry a line."""
        head = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "entries"}
        lines = [
            f" {json.dumps(name)}: {json.dumps(None if value == math.inf else value)}"
            for name, value in {"format": _FORMAT, "version": _VERSION, **head}.items()
        ]
        entries = ",\n".join("  " + json.dumps(_entry_dict(entry), sort_keys=True) for entry in self.entries)
        return "{\n" + ",\n".join([*lines, f' "entries": [\n{entries}\n ]']) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """The inverse of `to_json`.

        Raises
        ------
        ParamsError
            For anything that is not such an object.
        """
        try:
            data = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ParamsError(f"a calibration must be JSON: {error}") from None
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise ParamsError(f"a calibration must be a JSON object with the format {_FORMAT!r}, got {shown(text)}")
        if data.get("version") != _VERSION:
            raise ParamsError(f"version of a calibration must be {_VERSION}, got {shown(data.get('version'))}")
        body = {name: value for name, value in data.items() if name not in ("format", "version")}
        body |= {name: math.inf for name in ("error", "preset_error", "budget_bits") if body.get(name, 0.0) is None}
        items = body.get("entries")
        if not isinstance(items, list):
            raise ParamsError(f"entries of a calibration must be a list, got {shown(items)}")
        return _made(cls, {**body, "entries": tuple(_entry(item) for item in items)})


def _named(kind: str, layer: int | None) -> str:
    return f"{kind} tensors" if layer is None else f"{kind} tensors of layer {layer}"


def _entry_dict(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "params": entry.params.to_dict()}


def _entry(data: object) -> Entry:
    if not isinstance(data, Mapping):
        raise ParamsError(f"an entry of a calibration must be a JSON object, got {shown(data)}")
    values = dict(data)
    if "params" in values:
        given = values["params"]
        values["params"] = Params.from_dict(given)
        for name in sorted(Params().to_dict().keys() - given.keys()):  # a default is not what was chosen
            raise ParamsError(f"params of a calibration must have all fields, got none for {name!r}")
    return _made(Entry, values)


def _made(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """A dataclass of just these fields."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for name in sorted(names ^ set(values)):
        word = "lacks the" if name in names else "has an unknown"
        raise ParamsError(f"{kind.__name__.lower()} {word} field {shown(name)}")
    return kind(**values)
