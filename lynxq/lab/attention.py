"""What the attention of every layer was asked, so that it can be asked again with other keys and values.

Transformers finds a model's attention function by a name in a public registry. We register, beside a function, one that
calls it and keeps its arguments; so masks, scales, soft caps, windows and whatever else a model has come along.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from lynxq.arrays import Array
from lynxq.errors import ModelError
from lynxq.lab import libraries
from lynxq.lab.models import LanguageModel
from lynxq.libraries import need
from lynxq.metrics import AttentionError

_PREFIX = "lynxq-recorded-"

#: Where calls go; a variable of the context, so that other threads may use the same registry.
_CALLS: ContextVar[list[AttentionCall] | None] = ContextVar("_CALLS", default=None)


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One layer's attention during one forward pass.

    Attributes
    ----------
    layer : int
    queries : torch tensor, shape (B, query heads, T, head dim)
        After the position embedding.
    keys, values : torch tensor, shape (B, KV heads, cached + T, head dim)
    output : torch tensor, shape (B, T, query heads, head dim of values)
    attend : callable
        From keys and values of these shapes to the output: the model's own function with the same queries and masks.
    """

    layer: int
    queries: Array
    keys: Array
    values: Array
    output: Array
    attend: Callable[[Array, Array], Array]

    def error(self, keys: Array, values: Array) -> AttentionError:
        """The error of the output if the first tokens of the cache are replaced.

        Parameters
        ----------
        keys, values : torch tensor, shape (tokens, KV heads, head dim)
            What stands for the first tokens.
        """
        torch = libraries.torch()
        near = []
        for exact, replacement in ((self.keys, keys), (self.values, values)):
            own = exact.clone()
            own[:, :, : len(replacement)] = replacement.transpose(0, 1).to(own.device)
            near.append(own)
        with torch.no_grad():
            output = self.output.double()
            error = self.attend(*near).double() - output
            sums = [x.square().sum((0, 1, 3)).tolist() for x in (error, output)]
        return AttentionError(tuple(sums[0]), tuple(sums[1]))


@contextmanager
def recorded(model: LanguageModel) -> Iterator[list[AttentionCall]]:
    """Record the calls of attention within a ``with`` block, in the order in which they are made.

    Yields
    ------
    list of AttentionCall
        It grows with every forward pass of the model in this thread.

    Raises
    ------
    ModelError
        If the model does not find its attention function in the registry of transformers.
    """
    module = model.module
    before = module.config._attn_implementation
    name = _register(before)
    module.set_attn_implementation(name)
    calls: list[AttentionCall] = []
    token = _CALLS.set(calls)
    try:
        if module.config._attn_implementation != name:
            raise ModelError(f"{model.name} does not take its attention function from the registry of transformers")
        yield calls
    finally:
        _CALLS.reset(token)
        module.set_attn_implementation(before)


def _register(implementation: str) -> str:
    """The name of the recording twin of an attention function, with the same masks."""
    transformers = libraries.transformers()
    name = _PREFIX + implementation
    functions = need("transformers.modeling_utils", libraries.EXTRA).ALL_ATTENTION_FUNCTIONS
    masks = need("transformers.masking_utils", libraries.EXTRA).ALL_MASK_ATTENTION_FUNCTIONS
    if name not in functions:

        def attention(module: Any, query: Array, key: Array, value: Array, mask: Array, **options: Any) -> Any:
            inner = _eager(module) if implementation == "eager" else functions[implementation]
            result = inner(module, query, key, value, mask, **options)
            calls = _CALLS.get()
            if calls is not None:

                def attend(keys: Array, values: Array) -> Array:
                    return inner(module, query, keys, values, mask, **options)[0]

                calls.append(AttentionCall(int(module.layer_idx), query, key, value, result[0], attend))
            return result

        transformers.AttentionInterface.register(name, attention)
        transformers.AttentionMaskInterface.register(name, masks[implementation])
    return name


def _eager(module: Any) -> Callable[..., Any]:
    """A model's own plain attention, which is in no registry but has one name in every model's module."""
    function: Callable[..., Any] | None = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if function is None:
        raise ModelError(f"{type(module).__name__} has no function eager_attention_forward beside it")
    return function
