"""transformers 5: caches that start as an anchor and become full, and caches as containers (extra ``hf``).

Tensors are named ``layer.{i}.key`` and ``layer.{i}.value`` and have the layout of transformers,
``[batch, heads, tokens, head dim]``, so the token axis is 2.
"""

from lynxq.integrations.hf.convert import from_cache, to_cache
from lynxq.integrations.hf.names import tensor_name
from lynxq.integrations.hf.progressive import ProgressiveCache

__all__ = ["ProgressiveCache", "from_cache", "tensor_name", "to_cache"]
