"""The timeline with a real model: python bench/e2e.py [--lossless] | --report [--check].

Without options it runs the committed experiment: SmolLM2-135M in two processes of one processor each, the transfers in
turn, on links that are to it what the paper's links are to its model. It takes about twenty minutes. `--lossless`
runs Lynx alone on many passages. `--report` writes the tables of docs/e2e.md from the results, and draws the pictures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from e2e_report import DRAWN, NEW, encoding, goals, losslessness, read, report, tables, times_of
from environment import RESULTS, environment, load_average

import lynxq
from lynxq import lab
from lynxq.e2e import Job, Outcome, Session, links, methods
from lynxq.lab import texts

#: The prompt that links are scaled for: its cache takes as many steps as the paper's.
REFERENCE = 2048
LYNX = ("lynx", "lynx-4+3", "lynx-5+2")
ALL = ("bf16", "int8", "int8-token", "int4", "kivi4", *LYNX)
#: What the transfer with calibrated parameters is calibrated on: tokens of the text from this character on, far behind
#: the prompts.
CALIBRATED_AT, CALIBRATED_TOKENS = 500_000, 2048


class Group(NamedTuple):
    """Runs on one prompt and one link: the paper's link in Gbit/s that it stands for, None for no limit.

    All methods take turns `repeats` times.
    """

    prompt: int
    link: float | None
    methods: tuple[str, ...]
    temperature: float = 0.0
    seeds: tuple[int, ...] = (0,)
    repeats: int = 1


GROUPS = (
    Group(2048, None, ALL),  # first, so that everything is warm; also a link on which Lynx cannot win
    Group(2048, 10.0, ALL),
    Group(2048, 25.0, (*ALL, "lynx-calibrated", "lynx-encoded")),
    Group(2048, 50.0, ALL, repeats=3),
    Group(256, 25.0, ("bf16", "int8", "int4", *LYNX)),
    Group(1024, 25.0, ("bf16", "int8", "int4", *LYNX)),
    Group(4096, 25.0, ("int8", "int4", *LYNX)),
    Group(8000, 25.0, ("int8", "int4", *LYNX)),  # the model has positions for 8192
    Group(2048, 25.0, ("lynx",), temperature=0.8, seeds=(1, 2)),
)
QUICK = (Group(256, 25.0, ("bf16", "int8", "int4", "lynx")), Group(512, 25.0, ("int8", "lynx")))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def calibration(text: str) -> str:
    """Parameters for each layer at the presets' bits in the anchor and 7 in all, by attention error."""
    model = lab.load()
    tokens = model.tokens(text[CALIBRATED_AT : CALIBRATED_AT + 16 * CALIBRATED_TOKENS])[:CALIBRATED_TOKENS]
    capture = lab.capture(model, tokens, queries=True)
    found = lynxq.calibrate(capture.tensors, capture.queries, token_axis=0, per="layer", code_bits=7)
    return found.to_json()


def jobs(group: Group, rate: float | None, calibrated: str | None) -> Iterator[tuple[int, Job]]:
    """The runs of a group in their order, each with the number of its repetition."""
    for repeat in range(group.repeats):
        for method in group.methods:
            for seed in group.seeds:
                yield repeat, Job(
                    method=method, prompt_tokens=group.prompt, new_tokens=NEW, rate=rate,
                    temperature=group.temperature, seed=seed,
                    calibration=calibrated if method == methods.CALIBRATED else None,
                )  # fmt: skip


async def experiment(text: str, groups: Iterable[Group], reference: int) -> dict[str, Any]:
    """All groups on one text; shorter prompts are beginnings of the longest."""
    groups = list(groups)
    calibrated = calibration(text) if any(methods.CALIBRATED in group.methods for group in groups) else None
    longest = max(reference, *(group.prompt for group in groups))
    begin, load = time.monotonic(), load_average()
    async with Session() as session:
        ids = (await session.tokens(text[: 8 * longest]))[:longest]
        say(f"prefill of {longest} tokens")
        seconds = await session.prefill(ids)
        costs = await session.costs(reference - 1)
        size = await session.cache_bytes(reference - 1)
        say(f"  {seconds:.1f} s; a step takes {1e3 * costs['step']:.1f} ms, BF16 has {size / 1e6:.1f} MB")
        rows = []
        for group in groups:
            rate = None if group.link is None else links.rate(group.link, size, costs["step"])
            for repeat, job in jobs(group, rate, calibrated):
                outcome = await session.run(job)
                if repeat or (group.prompt, group.link, group.temperature) != DRAWN:
                    outcome.spans = []
                rows.append({"link": group.link, "repeat": repeat, **outcome.to_dict()})
                say(f"  {group.prompt:5} {group.link} {job.method:12} " + summary(outcome))
        exact = await texts_of_bf16(session, {group.prompt for group in groups if not group.temperature}, rows)
    for row in rows:
        if not row["job"]["temperature"] and not row["error"]:
            row["same_as_bf16"] = row["tokens"] == exact[row["job"]["prompt_tokens"]]
    return {
        "environment": environment("torch", "transformers"),
        "load_before": load,
        "seconds": time.monotonic() - begin,
        "model": "SmolLM2-135M-Instruct, float32, one thread",
        "prefill": {"tokens": longest, "seconds": seconds},
        "reference": {"tokens": reference, "bf16_bytes": size, "step": costs["step"], "token": costs["token"]},
        "rows": rows,
    }


async def texts_of_bf16(session: Session, prompts: set[int], rows: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Greedy tokens from the BF16 cache of each prompt: those of a run that there is, or of one over a fast link."""
    found = {
        row["job"]["prompt_tokens"]: row["tokens"]
        for row in rows
        if row["job"]["method"] == "bf16" and not row["error"] and not row["job"]["temperature"]
    }
    for prompt in sorted(prompts - set(found)):
        found[prompt] = (await session.run(Job(method="bf16", prompt_tokens=prompt, new_tokens=NEW))).tokens
    return found


async def lossless(text: str, passages: int, prompt: int) -> dict[str, Any]:
    """Lynx alone on passages from all over the text, greedy: are the tokens those of the full reconstruction?"""
    load = load_average()
    rows = []
    async with Session() as session:
        ids = await session.tokens(text)
        size = await session.cache_bytes(prompt - 1)
        step = (await session.costs(prompt - 1))["step"]
        for number in range(passages):
            start = number * (len(ids) - prompt) // max(1, passages - 1)
            await session.prefill(ids[start : start + prompt])
            job = Job(method="lynx", prompt_tokens=prompt, new_tokens=NEW, rate=links.rate(25.0, size, step))
            outcome = await session.run(job)
            exact = await session.run(Job(method="bf16", prompt_tokens=prompt, new_tokens=NEW))
            outcome.spans = []
            rows.append({"start": start, **outcome.to_dict(), "same_as_bf16": outcome.tokens == exact.tokens})
            say(f"  token {start:6}: " + summary(outcome))
    return {
        "environment": environment("torch", "transformers"),
        "load_before": load,
        "model": "SmolLM2-135M-Instruct, float32, one thread",
        "rows": rows,
    }


def summary(o: Outcome) -> str:
    """A run in a line."""
    if o.error:
        return o.error
    times = " ".join(f"{at:6.2f}" if at is not None else "     -" for at in times_of(o))
    return f"{times}  kept {o.accepted}/{o.drafted}  as full: {o.same_as_full} {o.difference or ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="python-reference", help="a file of at least 8000 tokens, or its name in lab")
    parser.add_argument("--lossless", action="store_true", help="Lynx alone on many passages")
    parser.add_argument("--passages", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="short prompts, for work on the code; writes nothing")
    parser.add_argument("--report", action="store_true", help="write docs/e2e.md from the results")
    parser.add_argument("--check", action="store_true", help="with --report: fail if docs/e2e.md is not up to date")
    options = parser.parse_args()
    if options.report:
        report(check=options.check)
        return
    text_name, text = texts.read(options.text)
    if options.lossless:
        result, name = asyncio.run(lossless(text, options.passages, 512)), "e2e-lossless-smollm2.json"
    elif options.quick:
        result = {"text": text_name, **asyncio.run(experiment(text, QUICK, 512))}
        print("\n".join([*goals(result), "", *tables(result), *losslessness(result, None), *encoding(result)]))
        return
    else:
        result, name = asyncio.run(experiment(text, GROUPS, REFERENCE)), "e2e-smollm2.json"
    result = {"text": text_name, **result}
    path = RESULTS / name
    path.write_text(json.dumps(result, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
    say(f"wrote {path.name}")
    if read("e2e-smollm2.json"):
        report(check=False)


if __name__ == "__main__":
    main()
