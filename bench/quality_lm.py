"""What a language model says with coded caches: our pairs, calibrated ones and the baselines, on several texts.

python bench/quality_lm.py --name smollm2 --text prose=novel.txt --text python-source --calibrate novel.txt@500000

The first tokens of a text are a cache, exact or coded and decoded; the next ones are scored: KL of next-token
distributions, agreement, perplexity, errors of attention outputs. What `--calibrate` names is used for calibration
only. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
from typing import Any

import lm
from environment import environment, load_average

import lynxq
from lynxq import evaluate, lab, naming
from lynxq.calibration import Calibration
from lynxq.evaluate import Method
from lynxq.metrics import ErrorSums
from lynxq.params import Params

#: Methods of the package, in the order of tables.
METHODS = (
    *("pair", "keys", "paper"),
    *("kivi4", "kivi4-w0", "kivi4-w0-sinks", "kvquant4", "kvquant4-sinks", "turboquant4", "turboquant3", "nf4"),
    *("int4", "int4-g32", "int4-g64", "lynx-int4", "lynx-int8-anchor", "cachegen", "cachegen-lmcache"),
    *("int8", "int8-token", "int8-channel", "fp8"),
)
#: Schemes without sinks of their own, given four exact tokens as lynxq has.
WITH_SINKS = ("turboquant4", "nf4", "int4-g32", "int4-g64")
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
#: Calibrations: name, what is minimised, per what, budget (None: that of the presets).
CALIBRATIONS = (
    ("cal-vnmse", "centred_vnmse", "kind", None),
    ("cal-vnmse-layer", "centred_vnmse", "layer", None),
    ("cal-attention", "attention", "kind", None),
    ("cal-attention-layer", "attention", "layer", None),
    ("cal-attention-4.95", "attention", "kind", 4.95),
    ("cal-attention-layer-4.95", "attention", "layer", 4.95),
)


def with_sinks() -> list[Method]:
    return [
        Method.of_scheme(lynxq.baselines.WithSinks(lynxq.baselines.get(name)))
        for name in WITH_SINKS
        if f"{name}-sinks" not in evaluate.METHODS
    ]


def calibrated(capture: lab.Capture) -> list[tuple[Method, Calibration]]:
    found = []
    for name, objective, per, budget in CALIBRATIONS:
        queries = capture.queries if objective == "attention" else None
        calibration = lynxq.calibrate(capture.tensors, queries, budget, token_axis=0, per=per)
        found.append((calibration.method(name), calibration))
    return found


def tiers(method: Method) -> tuple[str, ...]:
    """Tiers to score: the full decode of all pairs is nearly the same, so that of the presets is enough."""
    there = lab.coding.tiers(method)
    return there if method.name in ("pair", "keys", "paper") or len(there) == 1 else there[:1]


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
        scores = lab.score(reference, near.tensors)
        row |= lm.averages(scores)
        row["attention_error"] = sum(scores.attention[1:], scores.attention[0]).pooled
        rows.append(row)
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
    calibrations = calibrated(lab.capture(model, tokens, queries=True))
    methods = [evaluate.METHODS[name] for name in METHODS] + with_sinks() + list(PAIRS)
    methods += [method for method, _ in calibrations]
    result: dict[str, Any] = {
        "environment": environment("torch", "transformers", "constriction"),
        "model": model.name,
        "texts": [about for _, about in made],
        "calibration": {"tokens": len(tokens), "tokens_sha256": lm.digest(tokens)},
        "load_before": load_average(),
        "calibrations": {
            method.name: {
                name: getattr(found, name)
                for name in ("objective", "budget_bits", "bits_per_element", "error", "preset_bits", "preset_error")
            }
            | {entry.kind: entry.params.to_dict() for entry in found.entries if entry.layer is None}
            for method, found in calibrations
        },
    }
    path = lm.result_path("quality-lm", options.name)
    rows = lm.resumed(path, result)
    done = {(row["text"], row["method"]) for row in rows}
    for passage, _ in made:
        left = [method for method in methods if (passage.name, method.name) not in done and method.available]
        reference = lab.reference(passage, attention_errors=True, greedy=0) if left else None
        for method in left:
            for row in rows_of(reference, method):
                rows.append(row)
                print(
                    f"{row['text']:14} {row['method']:24} {row['tier']:6} {row['bits_per_element']:6.3f} bits  "
                    f"KL {row['kl']:.2e}  top-1 {row['top1']:.3f}  attention {row['attention_error']:.2e}",
                    flush=True,
                )
            lm.write(path, result | {"rows": rows})
    print(path)


if __name__ == "__main__":
    main()
