"""A prompt cache on disk for transformers: what was computed of a prompt once is loaded the next time.

    python docs/examples/prompt_cache.py MODEL_FOLDER prompt.txt --folder prompt-cache

A file of the cache holds the keys and values of a prompt's whole pages. Another prompt may use as many of them as its
own beginning has in common with it, as with the prompt cache of llama.cpp. Pages are never coded twice: those that a
new file shares with an old one are copied as they are, and only new tokens are encoded.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

import lynxq
from lynxq.integrations.hf import from_cache, to_cache

PAGE = 256


def page_keys(model_id: str, tokens: Sequence[int]) -> list[str]:
    """A key for every whole page: a hash of the model and of all tokens up to the page's end."""
    digest = hashlib.sha256(model_id.encode())
    keys = []
    for start in range(0, len(tokens) - PAGE + 1, PAGE):
        digest.update(np.asarray(tokens[start : start + PAGE], "<u4").tobytes())
        keys.append(digest.hexdigest())
    return keys


class Hit(NamedTuple):
    """A file whose first pages are those of a prompt."""

    path: Path
    pages: int


class PromptCache:
    """A folder of prompt caches of one model.

    `model_id` must change with everything that changes keys and values: weights, revision, dtype, position scaling.
    """

    def __init__(self, folder: Path, model_id: str) -> None:
        self.folder = folder
        self.model_id = model_id
        folder.mkdir(parents=True, exist_ok=True)

    def find(self, tokens: Sequence[int]) -> Hit | None:
        """The file with the longest common beginning; the last token is left to the model, which needs its logits."""
        wanted = page_keys(self.model_id, tokens[:-1])
        best = None
        for path in sorted(self.folder.glob("*.lynx")):
            with lynxq.open(path) as reader:
                stored = reader.metadata
            common = sum(stored.get(f"page.{page}") == key for page, key in enumerate(wanted))
            if common > (best.pages if best else 0):
                best = Hit(path, common)
        return best

    def load(self, hit: Hit, dtype: torch.dtype) -> Any:
        """The pages of a hit as a cache to go on from."""
        with lynxq.open(hit.path) as reader:
            return to_cache(reader, tokens=hit.pages * PAGE, dtype=dtype)

    def save(self, tokens: Sequence[int], cache: Any, hit: Hit | None) -> Path | None:
        """Store the whole pages of a prompt: those of the hit as they are, the others from the cache."""
        keys = page_keys(self.model_id, tokens)
        shared = hit.pages if hit else 0
        if len(keys) == shared:
            return None
        path = self.folder / f"{keys[-1]}.lynx"
        metadata = {f"page.{page}": key for page, key in enumerate(keys)} | {"model": self.model_id}
        segments = list(self._shared(hit)) if hit else []
        cache.crop(len(keys) * PAGE - cache.get_seq_length())
        segments.append(from_cache(cache, first_token=shared * PAGE))
        unfinished = path.with_suffix(".part")
        lynxq.save(unfinished, segments[0], metadata=metadata)
        for segment in segments[1:]:
            lynxq.append(unfinished, segment)
        unfinished.replace(path)
        return path

    @staticmethod
    def _shared(hit: Hit) -> Iterator[dict[str, lynxq.Encoded]]:
        """The pages of a hit, segment by segment, as they are in its file."""
        with lynxq.open(hit.path) as reader:
            left = hit.pages
            for segment in range(reader.segments):
                whole = {name: tensor.encoded(segment=segment) for name, tensor in reader.items()}
                pages = min(left, next(iter(whole.values())).layout.pages)
                if pages:
                    yield {name: encoded.pages(0, pages) for name, encoded in whole.items()}
                left -= pages


@torch.no_grad()
def prefill(model: Any, tokens: Sequence[int], cache: Any) -> Any:
    """Let the model read what the cache does not hold yet, all but the last token."""
    rest = list(tokens[cache.get_seq_length() : -1])
    if rest:
        ids = torch.tensor([rest], device=model.device)
        model(ids, logits_to_keep=1, use_cache=True, **{cache_argument(model): cache})
    return cache


def cache_argument(model: Any) -> str:
    """How this version of transformers names the cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def generate(model: Any, tokens: Sequence[int], cache: Any, count: int) -> list[int]:
    """Greedy continuation."""
    ids = torch.tensor([list(tokens)], device=model.device)
    arguments = {"max_new_tokens": count, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    return model.generate(ids, **arguments, **{cache_argument(model): cache})[0, len(tokens) :].tolist()


def main(arguments: Sequence[str] | None = None) -> None:
    """Continue a prompt twice: by prefilling all of it, and from what is on disk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a transformers model with a tokenizer")
    parser.add_argument("prompt", type=Path, help="text file")
    parser.add_argument("--folder", type=Path, default=Path("prompt-cache"))
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate")
    parser.add_argument("--gguf", help="name of a .gguf file in the model's folder")
    options = parser.parse_args(arguments)

    more = {"gguf_file": options.gguf} if options.gguf else {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model, **more)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, **more).eval()
    tokens = tokenizer(options.prompt.read_text(encoding="utf-8"))["input_ids"]
    store = PromptCache(options.folder, f"{options.model.resolve().name} {model.dtype}")

    begin = time.perf_counter()
    computed = prefill(model, tokens, transformers.DynamicCache())
    prefilling = time.perf_counter() - begin
    print(f"prefill of {len(tokens)} tokens: {prefilling:.3f} s")

    begin = time.perf_counter()
    hit = store.find(tokens)
    cache = store.load(hit, model.dtype) if hit else transformers.DynamicCache()
    cache = prefill(model, tokens, cache)
    loading = time.perf_counter() - begin
    if hit is None:
        print("nothing on disk has the same beginning")
    else:
        print(f"{hit.pages * PAGE} tokens from disk, and prefill of the rest: {loading:.3f} s")
        print(f"speed-up: {prefilling / loading:.1f}")
    from_disk = generate(model, tokens, cache, options.tokens)
    print(f"text: {tokenizer.decode(from_disk)!r}")
    print(f"the same as without the cache: {from_disk == generate(model, tokens, computed, options.tokens)}")
    saved = store.save(tokens, cache, hit)
    print("stored already" if saved is None else f"stored {saved.stat().st_size} bytes in {saved.name}")


if __name__ == "__main__":
    main()
