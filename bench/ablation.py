"""Error against bits for every choice that the paper leaves open, in vNMSE and in what a model says.

python bench/ablation.py --name smollm2 --text prose=novel.txt --text python-source --fit novel.txt@500000

Keys are coded and values left exact, or the other way round. Errors are those of every fifth layer; for what the model
says all are coded. `--fit` names a text that only serves to fit anchor points. An interrupted run goes on where it
stopped.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import lm
from ablation_trials import Trial, method, trials
from environment import environment, load_average

from lynxq import evaluate, lab, naming
from lynxq.params import Params

#: Errors are those of every so many layers.
_EVERY = 5


def coder_of(trial: Trial) -> dict[str, Any]:
    """What codes, as JSON."""
    if isinstance(trial.coder, Params):
        return {"params": trial.coder.to_dict()}
    return {"scheme": trial.coder.name, "title": trial.coder.title}


def identity(row: dict[str, Any]) -> str:
    """What makes two rows the same measurement."""
    return json.dumps([row["kind"], row["uses"][0], row.get("params"), row.get("scheme")], sort_keys=True)


def errors(passage: lab.Passage, trial: Trial) -> dict[str, float]:
    """Errors and bits of every `_EVERY`-th layer, anchor and full."""
    exact = {
        name: x
        for name, x in passage.tensors.items()
        if naming.kind_of(name) == trial.kind and (naming.layer_of(name) or 0) % _EVERY == 0
    }
    found: dict[str, float] = {}
    for row in evaluate.evaluate(exact, [method(trial)], token_axis=0):
        prefix = "full_" if row.tier == "full" else ""
        found |= {f"{prefix}bits": row.bits_per_element, f"{prefix}vnmse": row.vnmse}
        found[f"{prefix}centred_vnmse"] = row.centred_vnmse
    return found


def says(reference: lab.Reference, trial: Trial) -> dict[str, float]:
    """What the model says with all layers from the anchor, or from what a baseline keeps."""
    tier = "anchor" if isinstance(trial.coder, Params) else "-"
    (near,) = lab.reconstructions(reference.passage.tensors, method(trial), wanted=(tier,))
    return lm.averages(lab.score(reference, near.tensors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lm.add_options(parser, continuation=256)
    parser.add_argument("--fit", metavar="PATH[@CHARACTER]", required=True, help="text to fit anchor points on")
    options = parser.parse_args()
    model = lab.load(options.model)
    made = [lm.passage(model, item, options.prefix, options.continuation) for item in options.text]
    _, text = lm.text_of(f"fit={options.fit}")
    tokens = model.tokens(text[: 16 * options.prefix])[: options.prefix]
    planned = trials(lab.capture(model, tokens).tensors)
    result: dict[str, Any] = {
        "environment": environment("torch", "transformers"),
        "model": model.name,
        "texts": [about for _, about in made],
        "fitted_on": {"tokens": len(tokens), "tokens_sha256": lm.digest(tokens)},
        "load_before": load_average(),
    }
    path = lm.result_path("ablation", options.name)
    old = lm.resumed(path, result, ("model", "texts", "fitted_on"))
    done = {identity(row): row for row in old.get("rows", [])}
    rows = []
    for trial in planned:
        row = json.loads(json.dumps({"kind": trial.kind, "uses": trial.uses, **coder_of(trial), "texts": {}}))
        rows.append(done.get(identity(row), row))
    # Errors first: they take a minute, and what a model says takes many.
    passages = [passage for passage, _ in made]
    for number, (trial, row) in enumerate(zip(planned, rows, strict=True)):
        for passage in passages:
            if passage.name not in row["texts"]:
                row["texts"][passage.name] = errors(passage, trial)
        _progress(number, len(planned), row)
    lm.write(path, result | {"rows": rows})
    references = [lab.reference(passage, attention_errors=False, greedy=0) for passage in passages]
    for number, (trial, row) in enumerate(zip(planned, rows, strict=True)):
        for reference in references:
            found = row["texts"][reference.passage.name]
            if "kl" not in found:
                found |= says(reference, trial)
        lm.write(path, result | {"rows": rows})
        _progress(number, len(planned), row)
    print(path)


def _progress(number: int, total: int, row: dict[str, Any]) -> None:
    figures = "  ".join(
        f"{text}: {found['bits']:.3f} bits {found['centred_vnmse']:.2e} KL {found.get('kl', float('nan')):.2e}"
        for text, found in row["texts"].items()
    )
    print(f"{number + 1}/{total} {row['kind']} {row['uses'][0]}  {figures}", flush=True)


if __name__ == "__main__":
    main()
