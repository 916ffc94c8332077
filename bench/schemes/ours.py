"""lynxq as a peer: both tiers come of one encode."""

from __future__ import annotations

import lynxq
from lynxq import Params
from lynxq.layout import Tier
from lynxq.naming import Kind
from schemes.base import Peer, Values


class Ours(Peer):
    """`keys_only` takes the keys preset for values, too."""

    def __init__(self, x: Values, kind: Kind, *, tier: Tier, keys_only: bool = False) -> None:
        super().__init__(x, kind)
        self._tier = tier
        params = Params.values() if kind == "value" and not keys_only else Params.keys()
        self._encoded = lynxq.encode(x, params, token_axis=0, threads=1)
        self._decode = lynxq.decode_anchor if tier == "anchor" else lynxq.decode_full

    def encode(self) -> None:
        lynxq.encode(self.x, self._encoded.params, token_axis=0, threads=1, out=self._encoded)

    def decode(self) -> None:
        self._decode(self._encoded, out=self.out, threads=1)

    @property
    def nbytes(self) -> int:
        return self._encoded.anchor_only().nbytes if self._tier == "anchor" else self._encoded.nbytes
