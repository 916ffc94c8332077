"""Error against bits for every choice that the paper leaves open, in vNMSE and in what a model says.

python bench/ablation.py --name smollm2 --text prose=novel.txt --text python-source --fit novel.txt@500000

Keys are coded and values left exact, or the other way round. `--fit` names a text that only serves to fit anchor
points. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import lm
from ablation_trials import Trial, method, trials
from environment import environment, load_average

from lynxq import lab, naming
from lynxq.metrics import ErrorSums
from lynxq.params import Params


def coder_of(trial: Trial) -> dict[str, Any]:
    """What codes, as JSON."""
    if isinstance(trial.coder, Params):
        return {"params": trial.coder.to_dict()}
    return {"scheme": trial.coder.name, "title": trial.coder.title}


def identity(row: dict[str, Any]) -> str:
    """What makes two rows the same measurement."""
    return json.dumps([row["kind"], row["uses"][0], row.get("params"), row.get("scheme")], sort_keys=True)


def measure(reference: lab.Reference, trial: Trial) -> dict[str, Any]:
    """Errors and bits of a kind, anchor and full; KL of the anchor."""
    exact, found = reference.passage.tensors, {}
    for near in lab.reconstructions(exact, method(trial)):
        part = near.keys if trial.kind == "key" else near.values
        errors = ErrorSums()
        for name, x in exact.items():
            if naming.kind_of(name) == trial.kind:
                errors += ErrorSums.of(x, near.tensors[name], token_axis=0)
        prefix = "full_" if near.tier == "full" else ""
        found[f"{prefix}bits"] = part.bits_per_element
        found[f"{prefix}vnmse"] = errors.vnmse
        found[f"{prefix}centred_vnmse"] = errors.centred_vnmse
        if near.tier != "full":
            found |= lm.averages(lab.score(reference, near.tensors))
    return found


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
    references = [lab.reference(passage, attention_errors=False, greedy=0) for passage, _ in made]
    rows = []
    for number, trial in enumerate(planned):
        row: dict[str, Any] = {"kind": trial.kind, "uses": trial.uses, **coder_of(trial)}
        row = json.loads(json.dumps(row))
        begin = time.perf_counter()
        if identity(row) in done:
            row = done[identity(row)]
        else:
            row["texts"] = {one.passage.name: measure(one, trial) for one in references}
        rows.append(row)
        lm.write(path, result | {"trials": len(planned), "rows": rows})
        figures = "  ".join(
            f"{text}: {found['bits']:.3f} bits {found['centred_vnmse']:.2e} KL {found['kl']:.2e}"
            for text, found in row["texts"].items()
        )
        seconds = time.perf_counter() - begin
        print(f"{number + 1}/{len(planned)} {trial.kind} {trial.uses[0]}  {figures}  {seconds:.0f} s", flush=True)
    print(path)


if __name__ == "__main__":
    main()
