"""`Params`: exactly what changes the bytes of a stream, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from lynxq import companding
from lynxq.arguments import choice, integer, shown
from lynxq.errors import ParamsError

Axis = Literal["token", "channel"]
Center = Literal["midrange", "mean"]
Metadata = Literal["u8", "u16", "f32"]

#: Most bits of a whole code: the magnitude level and the sign share a byte.
CODE_BITS = 8
#: (anchor_bits, residual_bits)
SPLITS = tuple((a, r) for a in range(3, 7) for r in range(2, 6) if a + r <= CODE_BITS)
MAX_PAGE = 65536
MIN_ALPHA, MAX_ALPHA = 1e-6, 1e6


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of the codec; immutable, hashable, comparable.

    Equal `Params` give the same bytes and the same decoded bits for every input.

    Parameters
    ----------
    axis : {"token", "channel"}
        Grouping axis: runs of tokens of one channel (good for keys, whose outliers are channels), or runs
        of channels of one token inside one head (good for values, where the token matters).
    range_size : int
        Values in a run that shares one exact range (lo, hi). Along tokens it must divide `page`.
    chunk : int
        Values that share one centre and one scale; must divide `range_size`. When it equals
        `range_size` and the centre is the midrange, centre and scale follow from the range and cost nothing.
    page : int
        Tokens in a page, the unit of encoding, transfer and random access; a multiple of 8, at most 65536.
    anchor_bits, residual_bits : int
        Bits of a code in the anchor stream, 3 to 6, and in the residual stream, 2 to 5; together at most 8. Each
        bit less in the residual makes the full decode's vNMSE four times as large, and leaves the anchor about as
        it is.
    alpha : float
        Strength of the companding; 0 is linear, otherwise from 1e-6 to 1e6.
    center : {"midrange", "mean"}
        Centre of a chunk.
    metadata : {"u8", "u16", "f32"}
        How a chunk's centre and scale are stored.
    sink_tokens : int
        Tokens at the beginning of the *sequence* that are kept verbatim in the anchor stream (attention
        sinks); at most `page`.
    anchor_points : tuple of float, optional
        The 2^(anchor_bits-1) reconstruction points of the anchor decode, in units of the chunk's scale,
        not decreasing, within [0, 1], rounded to float32. None takes :func:`lynxq.companding.anchor_points`.

    Raises
    ------
    ParamsError
        If a value is out of its range or does not fit another one.

    Examples
    --------
    >>> from lynxq import Params
    >>> Params.keys() == Params()
    True
    >>> Params.values().axis
    'channel'
    >>> Params.from_json(Params.keys(alpha=1.0).to_json()).alpha
    1.0
    """

    axis: Axis = "token"
    range_size: int = 256
    chunk: int = 32
    page: int = 256
    anchor_bits: int = 4
    residual_bits: int = 4
    alpha: float = 0.5
    center: Center = "midrange"
    metadata: Metadata = "u8"
    sink_tokens: int = 4
    anchor_points: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name, choices in (("axis", Axis), ("center", Center), ("metadata", Metadata)):
            choice(name, getattr(self, name), choices)
        for name, low, high in (
            ("page", 8, MAX_PAGE),
            ("range_size", 1, MAX_PAGE),
            ("chunk", 1, MAX_PAGE),
            ("anchor_bits", 3, 6),
            ("residual_bits", 2, 5),
            ("sink_tokens", 0, MAX_PAGE),
        ):
            self._set(name, integer(name, getattr(self, name), low, high, ParamsError))
        self._set("alpha", _alpha(self.alpha))
        self._check_relations()
        if self.range_implies_chunk:
            self._set("metadata", "u8")  # nothing is stored, so the width changes nothing
        if self.anchor_points is not None:
            points = _points(self.anchor_points, self.anchor_bits)
            default = companding.anchor_points(self.alpha, self.anchor_bits, self.residual_bits)
            self._set("anchor_points", None if points == tuple(default.tolist()) else points)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_relations(self) -> None:
        if self.page % 8:
            raise ParamsError(f"page must be a multiple of 8, got {self.page}")
        if self.range_size % self.chunk:
            raise ParamsError(f"chunk must divide range_size {self.range_size}, got {self.chunk}")
        if self.axis == "token" and self.page % self.range_size:
            raise ParamsError(f"range_size must divide page {self.page} along tokens, got {self.range_size}")
        if (self.anchor_bits, self.residual_bits) not in SPLITS:
            raise ParamsError(
                f"anchor_bits + residual_bits must be at most {CODE_BITS}, got {self.anchor_bits}+{self.residual_bits}"
            )
        if self.sink_tokens > self.page:
            raise ParamsError(f"sink_tokens must be at most page {self.page}, got {self.sink_tokens}")

    @classmethod
    def keys(cls, **changes: Any) -> Params:
        """The preset for keys, and the default for anything: runs of 256 tokens of a channel, chunks of 32.

        Parameters
        ----------
        **changes
            Fields that shall differ from the preset.
        """
        return cls(**changes)

    @classmethod
    def values(cls, **changes: Any) -> Params:
        """The preset for values: runs of 64 channels of a token, range only.

        It has a higher vNMSE than `keys` on value tensors and yet a lower error in the model's output.

        Parameters
        ----------
        **changes
            Fields that shall differ from the preset.
        """
        return cls(**{"axis": "channel", "range_size": 64, "chunk": 64, **changes})

    @classmethod
    def paper(cls, **changes: Any) -> Params:
        """The paper's variant: α = 255, mean centre, float32 metadata, no sinks, plain level as anchor point.

        It differs from the paper in the number of levels: the paper's 127 need 18 signed symbols in the
        anchor, which do not fit 4 bits; 112 levels do (see the algorithm page).

        Parameters
        ----------
        **changes
            Fields that shall differ from the preset.
        """
        merged = cls(**{"alpha": 255.0, "center": "mean", "metadata": "f32", "sink_tokens": 0, **changes})
        if "anchor_points" in changes:
            return merged
        table = companding.levels(merged.alpha, merged.levels)[:: 1 << merged.residual_bits]
        return cls(**{**asdict(merged), "anchor_points": tuple(table.tolist())})

    @property
    def levels(self) -> int:
        """L, the largest magnitude level: (2^(anchor_bits-1) - 1) · 2^residual_bits."""
        return companding.level_count(self.anchor_bits, self.residual_bits)

    @property
    def range_implies_chunk(self) -> bool:
        """Whether centre and scale follow from the range, so that neither is stored."""
        return self.chunk == self.range_size and self.center == "midrange"

    @property
    def points(self) -> tuple[float, ...]:
        """The anchor points in force, float32 values."""
        if self.anchor_points is not None:
            return self.anchor_points
        return tuple(companding.anchor_points(self.alpha, self.anchor_bits, self.residual_bits).tolist())

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dict of JSON types."""
        result = asdict(self)
        if self.anchor_points is not None:
            result["anchor_points"] = list(self.anchor_points)
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Params:
        """The inverse of `to_dict`; absent fields take their defaults, unknown ones raise `ParamsError`."""
        if not isinstance(data, Mapping):
            raise ParamsError(f"params must be a mapping of names to values, got {shown(data)}")
        known = {field.name for field in fields(cls)}
        for name in data:
            if name not in known:
                raise ParamsError(f"parameter must be one of {', '.join(sorted(known))}, got {shown(name)}")
        return cls(**data)

    def to_json(self) -> str:
        """The fields as a JSON object with sorted names."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Params:
        """The inverse of `to_json`; raises `ParamsError` for anything that is not such an object."""
        try:
            data = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ParamsError(f"params are not valid JSON: {error}") from None
        return cls.from_dict(data)


def _real(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ParamsError(f"{name} must be a number, got {shown(value)}") from None
    if isinstance(value, str | bytes | bool) or not math.isfinite(number):
        raise ParamsError(f"{name} must be a finite number, got {shown(value)}")
    return number


def _alpha(value: object) -> float:
    alpha = _real("alpha", value)
    if alpha != 0.0 and not MIN_ALPHA <= alpha <= MAX_ALPHA:
        raise ParamsError(f"alpha must be 0 or from {MIN_ALPHA:g} to {MAX_ALPHA:g}, got {shown(value)}")
    return abs(alpha)  # -0.0 is 0.0


def _points(values: object, anchor_bits: int) -> tuple[float, ...]:
    try:
        given: tuple[object, ...] = tuple(values)  # type: ignore[arg-type]
    except TypeError:
        raise ParamsError(f"anchor_points must be a sequence of numbers, got {shown(values)}") from None
    count = 1 << (anchor_bits - 1)
    if len(given) != count:
        raise ParamsError(f"anchor_points must have {count} values for {anchor_bits} bits, got {len(given)}")
    numbers = [_real("anchor_points", value) for value in given]
    if not all(0.0 <= number <= 1.0 for number in numbers) or numbers != sorted(numbers):
        raise ParamsError(f"anchor_points must not decrease and must lie within [0, 1], got {shown(given)}")
    return tuple(companding.float32(abs(number)) for number in numbers)
