"""The data type ``bfloat16`` for zarr 3, which has none of its own: elements are those of ml_dtypes.

Importing :mod:`lynxq.integrations.zarr` registers it, unless zarr knows the name already. The name and the form of
fill values are those of the registry of zarr extensions, so that other implementations can read such arrays.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import ml_dtypes
import numpy as np

from lynxq.arguments import shown
from lynxq.libraries import absent

try:
    from zarr.core.dtype.common import HasEndianness, HasItemSize
    from zarr.dtype import DataTypeValidationError, ZDType, data_type_registry
except ImportError as error:
    ZDType, HasEndianness, HasItemSize = (absent("zarr", "lynxq[zarr]", error) for _ in range(3))

_NAME = "bfloat16"
_DTYPE: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
_NAN = 0x7FC0
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, kw_only=True)
class BFloat16(ZDType, HasEndianness, HasItemSize):
    """bfloat16, little-endian in memory.

    Raises
    ------
    MissingLibraryError
        If zarr is not installed.

    Examples
    --------
    >>> import zarr
    >>> import lynxq.integrations.zarr
    >>> array = zarr.create_array({}, shape=(4,), dtype="bfloat16", fill_value=0.5)
    >>> array[:2]
    array([0.5, 0.5], dtype=bfloat16)
    """

    dtype_cls: ClassVar[type[np.dtype[Any]]] = type(_DTYPE)
    _zarr_v3_name: ClassVar[str] = _NAME

    @classmethod
    def from_native_dtype(cls, dtype: Any) -> Self:
        """The data type of a numpy dtype; raises `DataTypeValidationError` unless it is that of ml_dtypes."""
        if dtype == _DTYPE and dtype.isnative:
            return cls()
        raise DataTypeValidationError(f"a dtype must be {_DTYPE!r}, got {dtype!r}")

    def to_native_dtype(self) -> np.dtype[Any]:
        """The dtype of ml_dtypes; raises `DataTypeValidationError` for big-endian elements, which it does not have."""
        if self.endianness != "little":
            raise DataTypeValidationError(f"bfloat16 must be little-endian, got {self.endianness}")
        return _DTYPE

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        raise DataTypeValidationError(f"zarr format 2 has no bfloat16, got {shown(data)}")

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        if data == _NAME:
            return cls()
        raise DataTypeValidationError(f"a data type must be {_NAME!r}, got {shown(data)}")

    def to_json(self, zarr_format: int) -> Any:
        """The name in metadata; raises `ValueError` for zarr format 2."""
        if zarr_format != 3:
            raise ValueError(f"zarr format {zarr_format} has no bfloat16: store uint16, and view it as bfloat16")
        return _NAME

    def _check_scalar(self, data: object) -> bool:
        try:
            self.cast_scalar(data)
        except TypeError:
            return False
        return True

    def cast_scalar(self, data: object) -> Any:
        """A number as a bfloat16; raises `TypeError` for anything else."""
        if isinstance(data, str) and data in _SPECIAL:
            data = _SPECIAL[data]
        if isinstance(data, bool | str | bytes | complex):
            raise TypeError(f"a bfloat16 must be made of a number, got {shown(data)}")
        try:
            return ml_dtypes.bfloat16(data)
        except (TypeError, ValueError):
            raise TypeError(f"a bfloat16 must be made of a number, got {shown(data)}") from None

    def default_scalar(self) -> Any:
        """Zero."""
        return ml_dtypes.bfloat16(0)

    def from_json_scalar(self, data: Any, *, zarr_format: int) -> Any:
        """A fill value of metadata: a number, NaN, Infinity, -Infinity, or the bits in hexadecimal digits."""
        if isinstance(data, str) and re.fullmatch("0x[0-9a-fA-F]{4}", data):
            return np.uint16(int(data, 16)).view(_DTYPE)
        return self.cast_scalar(data)

    def to_json_scalar(self, data: object, *, zarr_format: int) -> float | str:
        """A fill value as it stands in metadata."""
        scalar = self.cast_scalar(data)
        bits = int(np.asarray(scalar).view(np.uint16))
        if math.isnan(scalar):
            return "NaN" if bits == _NAN else f"{bits:#06x}"
        if math.isinf(scalar):
            return "Infinity" if scalar > 0 else "-Infinity"
        return float(scalar)

    @property
    def item_size(self) -> int:
        """Bytes of an element."""
        return 2


def register() -> None:
    """Make zarr know the data type. Version 3.1 of zarr collects entry points of data types, and never loads them."""
    if _NAME not in data_type_registry.contents:
        data_type_registry.register(_NAME, BFloat16)
