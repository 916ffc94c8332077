"""safetensors files in and out, bfloat16 included."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - makes numpy understand "bfloat16", which safetensors asks it for
import numpy as np
import safetensors
import safetensors.numpy

from lynxq.arguments import shown
from lynxq.arrays import Array
from lynxq.container.atomic import replacing, sync
from lynxq.errors import TensorFileError

#: Where a safetensors header keeps its metadata.
_RESERVED = "__metadata__"

#: Bytes of an element, by the names that safetensors gives to dtypes.
_ITEMSIZE = {"F32": 4, "F16": 2, "BF16": 2}


class TensorFile:
    """An open safetensors file: names, shapes and sizes at once, tensors when asked for."""

    def __init__(self, handle: Any, path: str) -> None:
        self._handle = handle
        self._path = path
        self.names: list[str] = list(handle.offset_keys())  # in the order of the file
        self.metadata: dict[str, str] = dict(handle.metadata() or {})

    def __getitem__(self, name: str) -> Array:
        try:
            return self._handle.get_tensor(name)
        except Exception as error:  # noqa: BLE001 - whatever a foreign library makes of a hostile file
            raise TensorFileError(f"tensor {shown(name)} of {self._path} cannot be read: {shown(str(error))}") from None

    def nbytes(self, name: str) -> int:
        """Bytes of a tensor of one of the dtypes that lynxq codes, without reading it; 0 for another dtype."""
        tensor = self._handle.get_slice(name)
        size: int = prod(tensor.get_shape()) * _ITEMSIZE.get(tensor.get_dtype(), 0)
        return size

    def items(self) -> Iterator[tuple[str, Array]]:
        """Names and tensors, one tensor in memory at a time."""
        for name in self.names:
            yield name, self[name]


@contextmanager
def open_tensors(path: str | os.PathLike[str]) -> Iterator[TensorFile]:
    """Open a safetensors file.

    Parameters
    ----------
    path : path

    Yields
    ------
    TensorFile

    Raises
    ------
    TensorFileError
        If it is not a safetensors file.
    OSError
        If it cannot be opened.
    """
    try:
        handle = safetensors.safe_open(path, framework="np")
    except safetensors.SafetensorError as error:
        raise TensorFileError(f"{os.fspath(path)} is not a safetensors file: {error}") from None
    with handle as opened:
        yield TensorFile(opened, os.fspath(path))


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file; an old one of that name is replaced when the new one is whole.

    Parameters
    ----------
    path : path
    tensors : mapping of str to ndarray
        With any strides: they are made contiguous first, since safetensors would write other values silently.
    metadata : mapping of str to str, optional
    """
    if _RESERVED in tensors:
        raise TensorFileError(f"a tensor of a safetensors file must not be named {_RESERVED!r}")
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()}
    with replacing(path) as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        safetensors.numpy.save_file(contiguous, file.name, metadata=dict(metadata or {}))
        # safetensors puts a file of its own there, which only its owner may read.
        Path(file.name).chmod(mode)
        with Path(file.name).open("rb+") as written:
            sync(written)
