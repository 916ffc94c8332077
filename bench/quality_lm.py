"""What a language model says with coded caches: our pairs, calibrated ones and the baselines, on several texts.

python bench/quality_lm.py --name smollm2 --text prose=novel.txt --text python-source --calibrate novel.txt@500000

The first tokens of a text are a cache, exact or coded and decoded; the next ones are scored: KL of next-token
distributions, agreement, perplexity. What `--calibrate` names is used for calibration
only. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

import lm
from environment import environment, load_average

import lynxq
from lynxq import baselines, evaluate, lab, naming
from lynxq.arrays import Array
from lynxq.calibration import Calibration
from lynxq.evaluate import Method
from lynxq.metrics import ErrorSums
from lynxq.params import Params

#: Methods of the package; what the project compares itself with comes first, since a run may be interrupted.
FIRST = ("pair", "kivi4-w0", "kivi4-w0-sinks", "int8")
OTHERS = (
    *("keys", "kvquant4-sinks", "int4-g64", "kivi4", "kvquant4", "turboquant4", "nf4", "paper", "int4", "fp8"),
    *("lynx-int4", "lynx-int8-anchor", "turboquant3", "int4-g32", "int8-token", "int8-channel", "cachegen"),
)
#: Schemes without sinks of their own, given four exact tokens as lynxq has.
WITH_SINKS = ("turboquant4", "int4-g64", "nf4")
_FINE = {"anchor_bits": 5, "residual_bits": 3}
PAIRS = (
    Method("pair-5+3", "K split 5+3, chunks of 128; values preset", Params.keys(**_FINE, chunk=128), Params.values()),
    Method(
        "pair-5+3-fine",
        "K split 5+3, chunks of 32; V chunks of 32 channels",
        Params.keys(**_FINE),
        Params.values(chunk=32),
    ),
    Method("pair-64", "K chunks of 64; values preset", Params.keys(chunk=64), Params.values()),
    Method(
        "pair-3+5",
        "presets with split 3+5",
        Params.keys(anchor_bits=3, residual_bits=5),
        Params.values(anchor_bits=3, residual_bits=5),
    ),
)
#: Codes of less than a byte: the residual is smaller, and so is what a transfer of both tiers takes.
SHORT = (
    evaluate.METHODS["pair-4+3"],
    Method(
        "pair-5+2",
        "K split 5+2, chunks of 128; V preset with split 4+3",
        Params.keys(anchor_bits=5, residual_bits=2, chunk=128),
        Params.values(residual_bits=3),
    ),
    Method("pair-4+2", "presets with split 4+2", Params.keys(residual_bits=2), Params.values(residual_bits=2)),
)
#: Calibrations: name, what is minimised, per what, budget (None: that of the presets).
CALIBRATIONS = (
    ("cal-attention", "attention", "kind", None),
    ("cal-vnmse", "centred_vnmse", "kind", None),
    ("cal-attention-layer", "attention", "layer", None),
    ("cal-attention-4.95", "attention", "kind", 4.95),
    ("cal-attention-layer-4.95", "attention", "layer", 4.95),
)


def calibrated(model: lab.LanguageModel, tokens: Array, old: Mapping[str, Any]) -> dict[str, Calibration]:
    """All calibrations, those of an interrupted run without doing them again."""
    found = {name: Calibration.from_json(json.dumps(text)) for name, text in old.items()}
    if len(found) < len(CALIBRATIONS):
        capture = lab.capture(model, tokens, queries=True)
        for name, objective, per, budget in CALIBRATIONS:
            queries = capture.queries if objective == "attention" else None
            found[name] = lynxq.calibrate(capture.tensors, queries, budget, token_axis=0, per=per)
    return found


def uncalibrated() -> tuple[list[Method], list[Method]]:
    """What to score before the calibrations, and what behind them."""
    sinks = [Method.of_scheme(baselines.WithSinks(baselines.get(name))) for name in WITH_SINKS]
    first, others = ([evaluate.METHODS[name] for name in names] for names in (FIRST, OTHERS))
    return [*first, PAIRS[0]], [method for method in (*SHORT, *sinks, *PAIRS[1:], *others) if method.available]


def tiers(method: Method) -> tuple[str, ...]:
    """Tiers to score: the full decode of all pairs of 8 bits is nearly the same, so that of the presets is enough."""
    there = lab.reconstruction.tiers(method)
    return there if method in SHORT or method.name in ("pair", "keys", "paper") or len(there) == 1 else there[:1]


def rows_of(reference: lab.Reference, method: Method) -> list[dict[str, Any]]:
    """Rows of a method on one text."""
    passage, rows = reference.passage, []
    for near in lab.reconstructions(passage.tensors, method, wanted=tiers(method)):
        row: dict[str, Any] = {
            "text": passage.name,
            "method": method.name,
            "title": method.title,
            "tier": near.tier,
            "bits_per_element": near.bits_per_element,
        }
        for kind, part in (("key", near.keys), ("value", near.values)):
            errors = ErrorSums()
            for name, x in passage.tensors.items():
                if naming.kind_of(name) == kind:
                    errors += ErrorSums.of(x, near.tensors[name], token_axis=0)
            row |= {
                f"{kind}_bits": part.bits_per_element,
                f"{kind}_vnmse": errors.vnmse,
                f"{kind}_centred_vnmse": errors.centred_vnmse,
            }
        rows.append(row | lm.averages(lab.score(reference, near.tensors)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lm.add_options(parser, continuation=512)
    parser.add_argument("--calibrate", metavar="PATH[@CHARACTER]", required=True, help="text to calibrate on")
    parser.add_argument("--calibration-tokens", type=int, default=2048)
    options = parser.parse_args()
    model = lab.load(options.model)
    made = [lm.passage(model, item, options.prefix, options.continuation) for item in options.text]
    _, text = lm.text_of(f"calibration={options.calibrate}")
    tokens = model.tokens(text[: 16 * options.calibration_tokens])[: options.calibration_tokens]
    result: dict[str, Any] = {
        "environment": environment("torch", "transformers", "constriction"),
        "model": model.name,
        "texts": [about for _, about in made],
        "calibrated_on": {"tokens": len(tokens), "tokens_sha256": lm.digest(tokens)},
        "load_before": load_average(),
    }
    path = lm.result_path("quality-lm", options.name)
    old = lm.resumed(path, result, ("model", "texts", "calibrated_on"))
    rows = old.get("rows", [])
    result["calibrations"] = old.get("calibrations", {})
    references = [lab.reference(passage, attention_errors=False, greedy=0) for passage, _ in made]
    first, others = uncalibrated()
    result["methods"] = len(first) + len(CALIBRATIONS) + len(others)

    def score(methods: list[Method]) -> None:
        for method in methods:
            for reference in references:
                if any((row["text"], row["method"]) == (reference.passage.name, method.name) for row in rows):
                    continue
                rows.extend(rows_of(reference, method))
                lm.write(path, result | {"rows": rows})
                print(f"{method.name:20} {reference.passage.name:14} KL {rows[-1]['kl']:.2e}", flush=True)

    score(first)
    calibrations = calibrated(model, tokens, result["calibrations"])
    result["calibrations"] = {name: json.loads(found.to_json()) for name, found in calibrations.items()}
    score([found.method(name) for name, found in calibrations.items()])
    score(others)
    lm.write(path, result | {"rows": rows})
    print(path)


if __name__ == "__main__":
    main()
