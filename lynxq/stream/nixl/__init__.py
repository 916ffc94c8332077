"""Split-stream transport over NIXL: frames are written straight into the receiver's memory, anchors first.

NIXL moves the bytes, by whatever link it has; this package decides their order, and checks them. Its two ends are used
by polling, and need a way to exchange two messages, the offer and the ticket. Page: docs/integrations/nixl.md.
"""

from lynxq.stream.nixl.agent import Agent, NixlAgent
from lynxq.stream.nixl.receiver import NixlReceiver
from lynxq.stream.nixl.sender import NixlSender

__all__ = ["Agent", "NixlAgent", "NixlReceiver", "NixlSender"]
