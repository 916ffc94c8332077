"""Tensors over TCP, with asyncio: `serve` on one side, `connect` on the other. Guide: docs/transport.md."""

from lynxq.stream.bucket import TokenBucket
from lynxq.stream.tcp.client import Client, connect
from lynxq.stream.tcp.server import Server, serve
from lynxq.stream.tcp.transfer import Ready, Transfer

__all__ = ["Client", "Ready", "Server", "TokenBucket", "Transfer", "connect", "serve"]
