"""Whether final tokens are those of the full reconstruction, checked against an independent decode of what arrived.

What is promised, and what is checked:

* *Greedy.* The final tokens are those of decoding step by step from the full reconstruction. A pass over many tokens
  and passes over one round differently (sums in another order). By how much is measured for each text. Where the two
  largest logits are not further apart than twice that, each may come out as the larger one, and both tokens are right:
  a tie. Such a place is reported with the gap, never passed over.
* *Sampled.* The final tokens are those of the same passes, with the same draft and the same uniform numbers, over an
  independent reconstruction; that they follow the right distribution is a property of the rule, which has tests of
  its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from lynxq import arrays
from lynxq.e2e.generation import Generation, Sampling
from lynxq.e2e.records import Outcome
from lynxq.encoded import Encoded
from lynxq.integrations.hf import ProgressiveCache
from lynxq.lab import LanguageModel


@dataclass(frozen=True)
class Reference:
    """Greedy decoding, step by step, from a full reconstruction.

    Attributes
    ----------
    tokens : list of int
    gaps : list of float
        By how much the largest logit exceeds the second one at each place.
    rounding : float
        Largest difference of a logit between these steps and one pass over the same tokens.
    """

    tokens: list[int]
    gaps: list[float]
    rounding: float


class Checks:
    """Compares outcomes with references, which are computed once for each cache."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._greedy: dict[tuple[str, int, int], Reference] = {}

    def compare(self, outcome: Outcome, generation: Generation, encoded: Mapping[str, Encoded], last: int) -> None:
        """Fill in ``same_as_full`` and ``difference`` of an outcome; `generation` is the one that it came of."""
        if outcome.job.temperature:
            outcome.same_as_full = self._replay(generation, outcome, encoded, last) == outcome.tokens
            return
        key = _digest(encoded), last, len(outcome.tokens)
        if key not in self._greedy:
            self._greedy[key] = self._step_by_step(encoded, last, len(outcome.tokens))
        wanted = self._greedy[key]
        outcome.rounding = wanted.rounding
        outcome.same_as_full = wanted.tokens == outcome.tokens
        if not outcome.same_as_full:
            pairs = zip(wanted.tokens, outcome.tokens, strict=True)
            place = next(number for number, (ours, theirs) in enumerate(pairs) if ours != theirs)
            outcome.difference = {"place": place, "gap": wanted.gaps[place]}

    def _cache(self, encoded: Mapping[str, Encoded]) -> ProgressiveCache:
        cache = ProgressiveCache(encoded, dtype=self._model.dtype)
        for name, tensor in encoded.items():
            cache.write(name, tensor)
        return cache

    def _step_by_step(self, encoded: Mapping[str, Encoded], last: int, count: int) -> Reference:
        import torch

        cache = self._cache(encoded)
        tokens, rows = [last], []
        for _ in range(count):
            rows.append(self._model.forward(torch.tensor([tokens[-1:]]), cache, keep=1)[0, -1])
            tokens.append(int(rows[-1].argmax()))
        steps = torch.stack(rows)
        best = torch.topk(steps, 2).values
        cache.truncate(cache.prefix)
        together = self._model.forward(torch.tensor([tokens[:-1]]), cache)[0]
        return Reference(tokens[1:], (best[:, 0] - best[:, 1]).tolist(), float((together - steps).abs().max()))

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
