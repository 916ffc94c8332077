"""The whole Lynx timeline with a real model: two processes, a slow link between them, and what a user would wait for.

A *prefill* process computes the cache of a prompt and sends it; a *decode* process receives it and generates. Lynx
drafts from the anchor while the residual is in flight, and verifies when it is there; other schemes wait for all of a
layer before they use it. Everything goes over the same transport (:mod:`lynxq.stream`). Needs the extra ``lab``.

The parts: what is sent (`methods`, `carrier`); generation (`generation`, `pace`, `checks`); the processes (`worker`:
`prefill`, and `decode` with its `run`); the one who starts both (`child`, `session`); and what comes of it (`records`,
`timeline`).
"""

from lynxq.e2e.records import Job, Outcome, Span
from lynxq.e2e.session import Session

__all__ = ["Job", "Outcome", "Session", "Span"]
