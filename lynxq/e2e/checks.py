"""Whether final tokens are those of the full reconstruction, checked against an independent decode of what arrived.

What is promised, and what is checked:

* *Greedy.* The final tokens are those of decoding step by step from the full reconstruction. A pass over many tokens
  and passes over one round differently (sums in another order), so where the two largest logits are closer than
  that difference, both tokens are right. Such a place is reported with the gap, never passed over.
* *Sampled.* The final tokens are those of the same passes, with the same draft and the same uniform numbers, over an
  independent reconstruction; that they follow the right distribution is a property of the rule, which has tests of
  its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from lynxq import arrays
from lynxq.e2e.generation import Generation, Sampling
from lynxq.e2e.records import Outcome
from lynxq.encoded import Encoded
from lynxq.integrations.hf import ProgressiveCache
from lynxq.lab import LanguageModel

#: Two logits that are closer than this are a tie: the largest difference that was seen between one pass over many
#: tokens and one pass for each, for logits of the order of 10 in float32, with a margin of a factor of ten.
TIE = 1e-3


class Checks:
    """Compares outcomes with references, which are computed once for each cache."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._greedy: dict[tuple[str, int], tuple[list[int], list[float]]] = {}

    def compare(self, outcome: Outcome, generation: Generation, encoded: Mapping[str, Encoded], last: int) -> None:
        """Fill in ``same_as_full`` and ``difference`` of an outcome; `generation` is the one that it came of."""
        if outcome.job.temperature:
            outcome.same_as_full = self._replay(generation, outcome, encoded, last) == outcome.tokens
            return
        tokens, gaps = self._step_by_step(encoded, last, len(outcome.tokens))
        outcome.same_as_full = tokens == outcome.tokens
        if not outcome.same_as_full:
            place = next(i for i, pair in enumerate(zip(tokens, outcome.tokens, strict=True)) if pair[0] != pair[1])
            outcome.difference = {"place": place, "gap": gaps[place], "tie": float(gaps[place] < TIE)}

    def _cache(self, encoded: Mapping[str, Encoded]) -> ProgressiveCache:
        cache = ProgressiveCache(encoded, dtype=self._model.dtype)
        for name, tensor in encoded.items():
            cache.write(name, tensor)
        return cache

    def _step_by_step(self, encoded: Mapping[str, Encoded], last: int, count: int) -> tuple[list[int], list[float]]:
        """Greedy tokens, and by how much the largest logit exceeds the second one at each place."""
        import torch

        key = _digest(encoded), last
        tokens, gaps = self._greedy.get(key, ([], []))
        if len(tokens) < count:
            cache, tokens, gaps = self._cache(encoded), [], []
            token = last
            for _ in range(count):
                logits = self._model.forward(torch.tensor([[token]]), cache, keep=1)[0, -1]
                best = torch.topk(logits, 2).values
                token = int(logits.argmax())
                tokens.append(token)
                gaps.append(float(best[0] - best[1]))
            self._greedy[key] = tokens, gaps
        return tokens[:count], gaps[:count]

    def _replay(self, original: Generation, outcome: Outcome, encoded: Mapping[str, Encoded], last: int) -> list[int]:
        """The tokens of the same verification and the same steps, over a cache that was never an anchor."""
        job = outcome.job
        again = Generation(self._model, self._cache(encoded), last, Sampling(job.temperature, job.seed))
        again.adopt(original)
        again.verify()
        again.step(job.new_tokens)
        return again.trace.final[: job.new_tokens]


def _digest(encoded: Mapping[str, Encoded]) -> str:
    digest = xxhash.xxh3_128()
    for tensor in encoded.values():
        for stream in (tensor.anchor, tensor.residual):
            digest.update(memoryview(arrays.as_bytes(stream, "stream")))
    return digest.hexdigest()
