"""The tables and the picture of docs/e2e.md, and the table of README, from the results of bench/e2e.py."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from environment import RESULTS, machine
from sections import ROOT, update

from lynxq.e2e import Outcome, methods, timeline

PICTURE = ROOT / "docs" / "e2e-timeline.png"
#: Final tokens of a run.
NEW = 64
#: Prompt, link and temperature of the runs whose timeline is kept and drawn.
DRAWN = (2048, 25.0, 0.0)


def times_of(o: Outcome) -> tuple[float | None, ...]:
    return o.first_drafted, o.first_final, o.until(32), o.until(64)


def outcomes(result: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Outcome]]:
    for row in result["rows"]:
        yield row, Outcome.from_dict(row)


def grouped(result: dict[str, Any]) -> dict[tuple[int, float | None, float], list[tuple[dict[str, Any], Outcome]]]:
    """Runs by prompt, link and temperature."""
    groups: dict[tuple[int, float | None, float], list[tuple[dict[str, Any], Outcome]]] = {}
    for row, o in outcomes(result):
        groups.setdefault((o.job.prompt_tokens, row["link"], o.job.temperature), []).append((row, o))
    return groups


def seconds(at: float | None) -> str:
    return "–" if at is None else f"{at:.2f}"


def yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "–"}[value]


def tables(result: dict[str, Any]) -> list[str]:
    """A table for each prompt and link."""
    reference = result["reference"]
    lines = [
        (
            f"{result['model']}, on {result['text']}. {machine(result)}. "
            f"A step of decoding takes {1e3 * reference['step']:.0f} ms with "
            f"{reference['tokens']} tokens, whose BF16 cache has {reference['bf16_bytes'] / 1e6:.1f} MB. "
            "Times in seconds; of several runs those of the one that is in the middle with 64 tokens."
        ),
        "",
    ]
    for (prompt, link, heat), group in grouped(result).items():
        rate = group[0][1].job.rate
        name = "no limit" if link is None or rate is None else f"like {link:g} Gbit/s: {rate / 1e6:.2f} MB/s"
        drawn = f", sampled at temperature {heat:g}" if heat else ""
        lines += [
            f"**{prompt} tokens, {name}{drawn}**",
            "",
            "| transfer | MB | first token | first final | 32 final | 64 final | kept of drafted | as full | as BF16 |",
            "|---|---:|---:|---:|---:|---:|---:|---|---|",
        ]
        for row, o in middle(group):
            kept = f"{o.accepted} / {o.drafted}" if o.drafted else "–"
            kept += f" ({o.revisions} revisions)" if o.revisions else ""
            kept += f", looked up {o.kept} / {o.proposed}" if o.proposed else ""
            lines.append(
                f"| {methods.of(o.job).title} | {(o.anchor_bytes + o.residual_bytes) / 1e6:.1f} | "
                + " | ".join(seconds(at) for at in times_of(o))
                + f" | {kept} | {yes(o.same_as_full)} | {yes(row.get('same_as_bf16'))} |"
            )
        lines.append("")
    return lines


def timelines(result: dict[str, Any]) -> list[str]:
    """For README: the prompt and the link that the picture has, in short."""
    group = middle(grouped(result)[DRAWN])
    lines = ["| transfer | MB | first token | first final | 64 final |", "|---|---:|---:|---:|---:|"]
    for _, o in group:
        if o.job.method != "lynx-encoded":
            first, final, _, all_of_them = times_of(o)
            size = (o.anchor_bytes + o.residual_bytes) / 1e6
            times = " | ".join(seconds(at) for at in (first, final, all_of_them))
            lines.append(f"| {methods.of(o.job).title} | {size:.1f} | {times} |")
    prompt, link, _ = DRAWN
    note = (
        f"{prompt} tokens of {result['text']}, {result['model']}; a link that is to it what {link:g} Gbit/s are to the "
        f"paper's model. {machine(result)}."
    )
    return [*lines, "", note]


def middle(group: list[tuple[dict[str, Any], Outcome]]) -> list[tuple[dict[str, Any], Outcome]]:
    """Of the repetitions of a method the one with the median time to all tokens; runs with other seeds all stay."""
    found: dict[tuple[str, int], list[tuple[dict[str, Any], Outcome]]] = {}
    for row, o in group:
        found.setdefault((o.job.method, o.job.seed), []).append((row, o))
    return [
        sorted(runs, key=lambda run: run[1].until(NEW) or float("inf"))[(len(runs) - 1) // 2] for runs in found.values()
    ]


def goals(result: dict[str, Any]) -> list[str]:
    """What was to be reached, group by group: medians over the repetitions, compared within each."""
    lines = [
        (
            "| tokens, link | transfer | first token / INT4 (≤ 1.15) | first token / INT8 (≤ 0.65) "
            "| first final − INT8's, in verifications (≤ 1) | the same, INT8 with a scale for each token "
            "| 64 final / INT8 (< 1) |"
        ),
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for (prompt, link, heat), group in grouped(result).items():
        turns: dict[int, dict[str, Outcome]] = {}
        for row, o in group:
            if not o.error:
                turns.setdefault(row.get("repeat", 0), {})[o.job.method] = o
        for method in dict.fromkeys(o.job.method for _, o in group):
            if heat or not is_lynx(method):
                continue
            found = [turn for turn in turns.values() if {method, "int4", "int8"} <= set(turn)]
            if found:
                where = "no limit" if link is None else f"like {link:g} Gbit/s"
                title = methods.of(found[0][method].job).title
                figures = [ratios(turn, turn[method], result) for turn in found]
                middles = [
                    statistics.median(column) if column[0] is not None else None
                    for column in zip(*figures, strict=True)
                ]
                shown = " | ".join("–" if value is None else f"{value:.2f}" for value in middles)
                lines.append(f"| {prompt}, {where} | {title} | {shown} |")
    return lines


def is_lynx(method: str) -> bool:
    """Whether a transfer is Lynx's, and encoded while it is sent."""
    return method.startswith("lynx") and method != "lynx-encoded"


def ratios(turn: dict[str, Outcome], lynx: Outcome, result: dict[str, Any]) -> tuple[float | None, ...]:
    """The columns of the goals for one run, beside those of the same turn."""
    int4, int8, token = turn["int4"], turn["int8"], turn.get("int8-token")
    passes = verification(lynx, result)
    return (
        lynx.first_drafted / int4.first_drafted,
        lynx.first_drafted / int8.first_drafted,
        (lynx.first_final - int8.first_final) / passes,
        None if token is None else (lynx.first_final - token.first_final) / passes,
        lynx.until(NEW) / int8.until(NEW),
    )


def verification(o: Outcome, result: dict[str, Any]) -> float:
    """Seconds of the verification of a run, without waiting; of one token more than nothing if nothing was drafted."""
    return o.verify_seconds or result["reference"]["step"]


def losslessness(result: dict[str, Any], many: dict[str, Any] | None) -> list[str]:
    """How many runs gave the tokens of the full reconstruction, and how much was accepted."""
    rows = list(outcomes(result)) + (list(outcomes(many)) if many else [])
    lynx = [(row, o) for row, o in rows if o.job.method.startswith("lynx") and not o.error]
    greedy = [(row, o) for row, o in lynx if not o.job.temperature]
    sampled = [o for _, o in lynx if o.job.temperature]
    drafted, kept = sum(o.drafted for _, o in greedy), sum(o.accepted for _, o in greedy)
    prompts = {(row.get("start", -1), o.job.prompt_tokens) for row, o in greedy}
    ties = sum(bool(o.tie) for _, o in greedy)
    rounding = max((o.rounding for _, o in greedy if o.rounding is not None), default=0.0)
    lines = [
        "| | |",
        "|---|---:|",
        f"| greedy runs of Lynx, and prompts | {len(greedy)}, {len(prompts)} |",
        (
            f"| … whose {NEW} tokens are those of step by step decoding from the full reconstruction "
            f"| {sum(bool(o.same_as_full) for _, o in greedy)} |"
        ),
        f"| … which differ at a tie of two logits | {ties} |",
        f"| largest difference of a logit between one pass and a pass for each token | {rounding:.1e} |",
        f"| … whose tokens are those from the BF16 cache | {sum(bool(row.get('same_as_bf16')) for row, _ in greedy)} |",
        f"| tokens drafted and kept, greedy | {kept} of {drafted} ({kept / max(1, drafted):.1%}) |",
        f"| acceptance of a token, those before it kept | {token_rate(o for _, o in greedy):.1%} |",
        *by_transfer([o for _, o in greedy]),
        (
            f"| sampled runs, and those that a replay over an independent reconstruction repeats "
            f"| {len(sampled)}, {sum(bool(o.same_as_full) for o in sampled)} |"
        ),
    ]
    lines += looked_up("greedy", [o for _, o in greedy])
    if sampled:
        drafted, kept = sum(o.drafted for o in sampled), sum(o.accepted for o in sampled)
        lines.append(f"| tokens drafted and kept, sampled | {kept} of {drafted} ({kept / max(1, drafted):.1%}) |")
    return lines + looked_up("sampled", sampled)


def by_transfer(found: list[Outcome]) -> list[str]:
    """Acceptance of each transfer, where there are several."""
    methods_of: dict[str, list[Outcome]] = {}
    for o in found:
        methods_of.setdefault(methods.of(o.job).title, []).append(o)
    if len(methods_of) < 2:
        return []
    return [
        f"| … {title}: {len(runs)} runs, {sum(o.accepted for o in runs)} of {sum(o.drafted for o in runs)} kept "
        f"| {token_rate(runs):.1%} |"
        for title, runs in methods_of.items()
    ]


def looked_up(kind: str, found: list[Outcome]) -> list[str]:
    """How much was proposed from rejected drafts, and what it saved; nothing where nothing was."""
    kept, proposed = sum(o.kept for o in found), sum(o.proposed for o in found)
    if not proposed:
        return []
    passes = sum(o.passes["lookup"] for o in found if o.proposed)
    return [
        (
            f"| tokens looked up in the rejected rest of a draft and kept, {kind} "
            f"| {kept} of {proposed} ({kept / proposed:.1%}), in {passes} passes |"
        )
    ]


def token_rate(found: Iterable[Outcome]) -> float:
    """Accepted tokens over those that were judged: a token after a rejected one was not."""
    found = list(found)
    kept = sum(o.accepted for o in found)
    return kept / max(1, kept + sum(o.accepted < o.drafted for o in found))


def encoding(result: dict[str, Any]) -> list[str]:
    """What encoding while sending costs, beside encoding before."""
    found: dict[str, list[float]] = {}
    for row, o in outcomes(result):
        if (o.job.prompt_tokens, row["link"], o.job.temperature) == DRAWN and o.anchor_at:
            found.setdefault(o.job.method, []).append(o.anchor_at)
    work = [
        sum(s.end - s.begin for s in o.spans if s.what == "encode")
        for row, o in outcomes(result)
        if o.job.method == "lynx" and (o.job.prompt_tokens, row["link"], o.job.temperature) == DRAWN
    ]
    if not {"lynx", "lynx-encoded"} <= set(found):
        return []
    lynx, before = statistics.median(found["lynx"]), statistics.median(found["lynx-encoded"])
    return [
        (
            f"All anchors of 2048 tokens are there after {lynx:.3f} s when they are encoded while they are sent, and "
            f"after {before:.3f} s when they were encoded before. Encoding took {statistics.median(work):.3f} s of "
            "work in all."
        )
    ]


def sections(result: dict[str, Any], many: dict[str, Any] | None) -> dict[str, list[str]]:
    source = ["", "Source: `bench/results/e2e-smollm2.json`" + (", `e2e-lossless-smollm2.json`." if many else ".")]
    return {
        "goals": goals(result) + source,
        "picture": ["![Who did what when](e2e-timeline.png)"],
        "tables": tables(result),
        "lossless": losslessness(result, many) + source,
        "encoding": encoding(result),
    }


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def report(*, check: bool) -> None:
    result = read("e2e-smollm2.json")
    if result is None:
        sys.exit("there are no results yet: python bench/e2e.py --text FILE")
    found = sections(result, read("e2e-lossless-smollm2.json"))
    update("docs/e2e.md", {name: "\n".join(lines).strip() for name, lines in found.items()}, check=check)
    if not check:
        draw(result)


def draw(result: dict[str, Any]) -> None:
    """The picture of the page: one prompt, one link, all transfers."""
    chosen = grouped(result)[DRAWN]
    wanted = {"bf16", "int8", "int4", "lynx", "lynx-5+2"}
    shown = [o for row, o in chosen if o.job.method in wanted and not row.get("repeat")]
    rate = shown[0].job.rate
    link = "no limit" if rate is None else f"{rate / 1e6:.2f} MB/s"
    timeline.draw(shown, PICTURE, title=f"{shown[0].job.prompt_tokens} tokens, {link}")
