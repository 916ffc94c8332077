"""The whole Lynx timeline with a real model: two processes, a slow link between them, and what a user would wait for.

A *prefill* process computes the cache of a prompt and sends it; a *decode* process receives it and generates. Lynx
drafts from the anchor while the residual is in flight, and verifies when it is there; other schemes wait for all of a
layer before they use it. Everything goes over the same transport (:mod:`lynxq.stream`). Needs the extra ``lab``.

The parts: what is sent (`schemes`, `carrier`), generation (`generation`), the processes (`prefill`, `decode`,
`worker`), the one who runs both (`session`), and what comes of it (`records`, `experiment`, `timeline`).
"""
