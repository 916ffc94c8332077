"""What serving engines do in torch: KIVI's integers and the cast to fp8, eager, in blocks that stay in the cache."""

from __future__ import annotations

import numpy as np
import torch

from lynxq.naming import Kind
from schemes.base import Peer, UnsuitableError, Values

#: Values of a group, KIVI's default.
GROUP = 32
#: Values that a step works on: fewer are slower for what each call of torch costs, more leave the cache.
BLOCK = 1 << 18


def _tensor(array: Values) -> torch.Tensor:
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


class Kivi(Peer):
    """Asymmetric integers after KIVI (arXiv 2402.02750): keys in groups of tokens of a channel, values of channels.

    fp16 scale and minimum for each group of 32; two 4-bit codes in a byte. Tokens behind the last whole group of
    keys are kept as they are, as in KIVI's residual cache.
    """

    def __init__(self, x: Values, kind: Kind, *, bits: int) -> None:
        super().__init__(x, kind)
        torch.set_num_threads(1)
        tokens, channels = x.shape[0], x.shape[1] * x.shape[2]
        if x.shape[2] % GROUP:
            raise UnsuitableError(f"head_dim must be a multiple of {GROUP}, got {x.shape[2]}")
        self._last, self._half = (1 << bits) - 1, GROUP // 2 if bits == 4 else GROUP
        self._dim = 1 if kind == "key" else 2  # where the group is in the grouped shape
        covered = tokens // GROUP * GROUP if kind == "key" else tokens
        shape = (covered // GROUP, GROUP, channels) if kind == "key" else (covered, channels // GROUP, GROUP)
        self._source = _tensor(x.reshape(tokens, channels)[:covered]).view(shape)
        self._target = _tensor(self.out.reshape(tokens, channels)[:covered]).view(shape)
        self._tail = slice(covered, tokens)
        meta, packed = list(shape), list(shape)
        meta[self._dim], packed[self._dim] = 1, self._half
        self._codes = torch.zeros(packed, dtype=torch.uint8)
        self._scale, self._low = torch.zeros(meta, dtype=torch.float16), torch.zeros(meta, dtype=torch.float16)
        self._rest = x[self._tail].copy()
        step = max(BLOCK // (shape[1] * shape[2]), 1)
        self._floats = torch.zeros(step, *shape[1:])
        self._bytes = torch.zeros(step, *shape[1:], dtype=torch.uint8)
        self._steps = [slice(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]

    def encode(self) -> None:
        dim, last = self._dim, self._last
        for step in self._steps:
            count = step.stop - step.start
            floats, codes = self._floats[:count], self._bytes[:count]
            floats.copy_(self._source[step])
            low, high = floats.amin(dim, keepdim=True), floats.amax(dim, keepdim=True)
            self._low[step], self._scale[step] = low, (high - low) / last
            low, scale = self._low[step].float(), self._scale[step].float()  # what the decoder will see
            scale.masked_fill_(scale == 0, 1)
            codes.copy_(floats.sub_(low).div_(scale).round_().clamp_(0, last))
            first = codes.narrow(dim, 0, self._half)
            if self._half < GROUP:
                first.bitwise_or_(codes.narrow(dim, self._half, self._half).bitwise_left_shift_(4))
            self._codes[step] = first
        self._rest[...] = self.x[self._tail]

    def decode(self) -> None:
        for step in self._steps:
            floats, codes = self._floats[: step.stop - step.start], self._codes[step]
            if self._half < GROUP:
                floats.narrow(self._dim, 0, self._half).copy_(codes & 15)
                floats.narrow(self._dim, self._half, self._half).copy_(codes >> 4)
            else:
                floats.copy_(codes)
            self._target[step] = floats.mul_(self._scale[step]).add_(self._low[step])
        self.out[self._tail] = self._rest

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self._codes, self._scale, self._low, self._rest))


class Fp8(Peer):
    """float8_e4m3fn with one float32 scale for the tensor, that of its largest value, as vLLM and LMCache do it."""

    def __init__(self, x: Values, kind: Kind) -> None:
        super().__init__(x, kind)
        torch.set_num_threads(1)
        self._source, self._target = _tensor(x.reshape(-1)), _tensor(self.out.reshape(-1))
        self._codes = torch.zeros(x.size, dtype=torch.float8_e4m3fn)
        self._floats = torch.zeros(BLOCK)
        self._scale = 1.0
        self._steps = [slice(start, min(start + BLOCK, x.size)) for start in range(0, x.size, BLOCK)]

    def encode(self) -> None:
        low, high = self._source.aminmax()
        largest = torch.finfo(torch.float8_e4m3fn).max
        self._scale = max(-low.item(), high.item()) / largest or 1.0
        for step in self._steps:
            floats = self._floats[: step.stop - step.start].copy_(self._source[step])
            self._codes[step] = floats.mul_(1 / self._scale).clamp_(-largest, largest)

    def decode(self) -> None:
        for step in self._steps:
            floats = self._floats[: step.stop - step.start].copy_(self._codes[step])
            self._target[step] = floats.mul_(self._scale)

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + np.dtype(np.float32).itemsize
