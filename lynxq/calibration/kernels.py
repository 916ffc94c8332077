"""What of the calibration is compiled by numba; imported when it is used."""

from __future__ import annotations

import numpy as np

from lynxq.backends.cpu.kernels.jit import kernel


@kernel
def add(x, cost, mu, sigma, of_token, of_channel, weight, moment):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Add values to a histogram; `of_token` and `of_channel` say to which centre a value belongs."""
    bins = len(weight)
    for outer in range(x.shape[0]):
        for token in range(x.shape[1]):
            row = of_token[token]
            for channel in range(x.shape[2]):
                column = of_channel[channel]
                scale = sigma[outer, row, column]
                if scale > np.float32(0.0):
                    t = min(abs(np.float64(x[outer, token, channel]) - mu[outer, row, column]) / scale, 1.0)
                    w = np.float64(cost[outer, token, channel]) * scale * scale
                    index = min(int(t * bins), bins - 1)
                    weight[index] += w
                    moment[index] += w * t
