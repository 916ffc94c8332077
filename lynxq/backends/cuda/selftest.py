"""A few kilobytes through the kernels and the reference, before the first result is believed.

Everything up to NVIDIA's PTX is proven without a GPU. What this covers is the rest: the assembler, the driver, the
hardware, and options that somebody else may have added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lynxq.backends.reference import ReferenceBackend
from lynxq.errors import BackendError
from lynxq.layout import Layout
from lynxq.params import Params

if TYPE_CHECKING:
    from lynxq.backends.cuda.backend import CudaBackend, Driver, Place


def _values(shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Values where a contraction, a flush to zero and an approximate division each show in the bytes."""
    random = np.random.default_rng(7)
    values = random.standard_normal(shape).astype(np.float32)
    values[:, shape[1] // 2 :] *= np.float32(2.0**-126)  # subnormals, and differences that are
    return values


def self_test(backend: CudaBackend, driver: Driver, where: Place) -> None:
    """Encode and decode on the device of `where` and compare with the reference.

    Raises
    ------
    BackendError
        If a byte differs.
    """
    reference = ReferenceBackend()
    for params in (Params.keys(), Params.values(), Params.keys(center="mean", metadata="f32")):
        layout = Layout.of(params, (70, 72), "float32", token_axis=0)
        x = _values(layout.shape)
        streams = [np.zeros(layout.stream_size(name), np.uint8) for name in ("anchor", "residual")]
        reference.encode(layout, x, streams[0], streams[1])
        expected = [*streams, np.empty_like(x), np.empty_like(x)]
        reference.decode(layout, streams[0], None, expected[2], layout.dtype)
        reference.decode(layout, streams[0], streams[1], expected[3], layout.dtype)

        found = [driver.to_device(np.full_like(part, 77), where) for part in expected]
        backend.run_encode(layout, driver.to_device(x, where), found[0], found[1])
        backend.run_decode(layout, found[0], None, found[2], layout.dtype)
        backend.run_decode(layout, found[0], found[1], found[3], layout.dtype)
        for name, want, have in zip(
            ("anchor", "residual", "anchor decode", "full decode"), expected, found, strict=True
        ):
            differ = np.count_nonzero(want.view(np.uint8) != driver.to_host(have, where).view(np.uint8))
            if differ:
                raise BackendError(
                    f"self-test of backend 'cuda' failed on device {where.device}: {differ} bytes of the {name} "
                    f"differ from the reference ({params.axis} axis, {params.metadata} metadata)"
                )
