"""What scripts that run a language model share: texts, passages, scores, and results that can be gone on with."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from environment import RESULTS

from lynxq import lab
from lynxq.arrays import Array
from lynxq.lab import results, texts


def add_options(parser: argparse.ArgumentParser, continuation: int) -> None:
    """Options for model and texts."""
    parser.add_argument("--name", required=True, help="of the model, in the names of results")
    parser.add_argument("--model", help="folder or GGUF file of a causal LM; SmolLM2-135M by default")
    parser.add_argument(
        "--text",
        action="append",
        required=True,
        metavar="NAME=PATH[@CHARACTER]",
        help=f"a text to score, from a character on; may be repeated; without a file: {', '.join(texts.TEXTS)}",
    )
    parser.add_argument("--prefix", type=int, default=1536, help="tokens whose cache is replaced")
    parser.add_argument("--continuation", type=int, default=continuation, help="tokens behind them that are scored")


def text_of(item: str) -> tuple[str, str]:
    """Name and content of a text."""
    name, equals, rest = item.partition("=")
    path, _, start = rest.partition("@")
    if not equals:
        return texts.read(item)
    return name, Path(path).read_text(encoding="utf-8")[int(start or 0) :]


def passage(model: lab.LanguageModel, item: str, prefix: int, continuation: int) -> tuple[lab.Passage, dict[str, Any]]:
    """A passage, and what a result says of it."""
    name, text = text_of(item)
    text = text[: 16 * (prefix + continuation + 1)]  # more than enough characters, and the tokenizer is not fast
    made = lab.prepare(model, text, prefix=prefix, continuation=continuation, name=name)
    about = {"name": name, "prefix": prefix, "continuation": continuation, "tokens_sha256": digest(made.tokens)}
    return made, about


def digest(tokens: Array) -> str:
    """SHA-256 of token ids, which says which text it was without having it."""
    return hashlib.sha256(np.asarray(tokens, np.int64).tobytes()).hexdigest()


def averages(scores: lab.Scores) -> dict[str, float]:
    """Scores of a cache, over all positions; `kl_error` is the standard error of the mean if these are independent."""
    return {
        "kl": float(scores.kl.mean()),
        "kl_error": float(scores.kl.std() / len(scores.kl) ** 0.5),
        "kl_p99": float(np.percentile(scores.kl, 99)),
        "top1": float(scores.agrees.mean()),
        "perplexity": scores.perplexity,
    }


def write(path: Path, result: Mapping[str, Any]) -> None:
    """A result, whole or not at all: a run that is interrupted goes on from it."""
    results.write(path, json.dumps(result, indent=1) + "\n")


def resumed(path: Path, like: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """An earlier result of the same code that has the same model, texts and so on; empty if there is none."""
    if not path.exists():
        return {}
    old: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    before, now = (one["environment"]["commit"] for one in (old, like))
    same = before == now and not now.endswith("+") and all(old.get(name) == like[name] for name in names)
    return old if same else {}


def result_path(kind: str, name: str) -> Path:
    return RESULTS / f"{kind}-{name}.json"
