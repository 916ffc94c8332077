"""The first tokens of a sequence kept exactly, with any scheme for the others.

Attention sinks (Xiao et al., StreamingLLM, arXiv 2309.17453) draw much of the attention whatever the text is, so an
error there moves every output. Lynxq keeps four tokens verbatim by default; for a fair comparison every baseline can do
so, too. KVQuant (arXiv 2401.18079) calls it attention-sink-aware quantization, with one token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lynxq import dtypes
from lynxq.arguments import instance, integer
from lynxq.baselines.base import F32, Context, Parts, Scheme
from lynxq.errors import ParamsError
from lynxq.naming import Kind


@dataclass(frozen=True)
class WithSinks(Scheme):
    """A scheme that leaves the first tokens of a sequence as they are.

    Parts: ``sinks``, in the tensor's own dtype, and those of the scheme, which sees only the tokens behind. A tensor
    that does not start at the beginning of its sequence (`first_token`) has fewer sinks, or none.

    Parameters
    ----------
    scheme : Scheme
        What codes the other tokens.
    tokens : int
        Number of sinks.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.baselines import PerTensorInteger, WithSinks
    >>> coded = WithSinks(PerTensorInteger(4), 1).encode(np.array([999.0, 0.0, 1.0, 15.0], np.float32), token_axis=0)
    >>> coded.decode().tolist(), coded.nbytes
    ([999.0, 0.0, 1.0, 15.0], 14)
    """

    scheme: Scheme
    tokens: int = 4

    def __post_init__(self) -> None:
        instance("scheme", self.scheme, Scheme, ParamsError)
        integer("tokens", self.tokens, 0, 1 << 48, ParamsError)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Short name."""
        return f"{self.scheme.name}-sinks"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name for tables."""
        first = "first token" if self.tokens == 1 else f"first {self.tokens} tokens"
        return f"{self.scheme.title}; {first} exact"

    @property
    def paper(self) -> str:  # type: ignore[override]
        """Where the scheme is from."""
        return self.scheme.paper

    @property
    def requires(self) -> str | None:  # type: ignore[override]
        """A library that is not a dependency of lynxq itself."""
        return self.scheme.requires

    def for_kind(self, kind: Kind | None) -> Scheme:
        """The variant for keys or for values."""
        inner = self.scheme.for_kind(kind)
        return self if inner is self.scheme else replace(self, scheme=inner)

    def _cut(self, context: Context) -> tuple[int, Context]:
        """Number of sinks, and what the scheme knows of the other tokens."""
        outer, tokens, heads, dim = context.block
        sinks = min(max(self.tokens - context.first_token, 0), tokens)
        shape = (outer, tokens - sinks, heads, dim)
        return sinks, replace(context, shape=shape, token_axis=1, first_token=context.first_token + sinks)

    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor; see :meth:`Scheme.compress`."""
        sinks, rest = self._cut(context)
        exact = np.ascontiguousarray(values[:, :sinks])
        parts = self.scheme.compress(np.ascontiguousarray(values[:, sinks:]), rest)
        return {"sinks": dtypes.from_float32(exact, context.dtype), **parts}

    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct a tensor; see :meth:`Scheme.restore`."""
        _, rest = self._cut(context)
        behind = {name: part for name, part in parts.items() if name != "sinks"}
        return np.concatenate(
            [dtypes.to_float32(parts["sinks"], context.dtype), self.scheme.restore(behind, rest)], axis=1
        )
