"""The KV cache of vLLM in a folder or an object store: a connector that vLLM loads by its path.

Tested with vLLM 0.32. The page "vLLM" of the documentation tells how to use it and what it promises.
"""

from lynxq.integrations.vllm.connector import LynxqConnector

__all__ = ["LynxqConnector"]
