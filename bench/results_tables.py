"""Sections of docs/results.md from results: tables, and what they say in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Result = Mapping[str, Any]
Row = dict[str, Any]

#: Bits that count as equal: alignment and sinks differ a little between schemes.
_EQUAL = 0.03
#: A KL this many times as large as another one is said to be larger; below that it may be noise.
_CLEAR = 1.1


def mean(values: Iterable[float]) -> float:
    """The mean."""
    numbers = list(values)
    return sum(numbers) / len(numbers)


def texts(result: Result) -> list[str]:
    """Names of the texts."""
    return [text["name"] for text in result["texts"]]


def source(result: Result, file: str) -> str:
    """Where figures come from."""
    environment, (first, *_) = result["environment"], result["texts"]
    return (
        f"Model {result['model']}; texts {', '.join(texts(result))}; a prefix of {first['prefix']} tokens is replaced, "
        f"{first['continuation']} positions are scored. {environment['processor']}, commit `{environment['commit']}`. "
        f"Source: `bench/results/{file}`."
    )


# --- language model --------------------------------------------------------------------------------


def by_method(result: Result) -> list[Row]:
    """Rows of a method and tier, averaged over texts; only those that all texts have."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in result["rows"]:
        found.setdefault((row["method"], row["tier"]), []).append(row)
    names = ("bits_per_element", "key_bits", "value_bits", "kl", "top1")
    names += ("key_vnmse", "value_vnmse", "key_centred_vnmse", "value_centred_vnmse")
    return [
        {
            **{name: rows[0][name] for name in ("method", "title", "tier")},
            **{name: mean(row[name] for row in rows) for name in names},
            "kls": {row["text"]: row["kl"] for row in rows},
        }
        for rows in found.values()
        if len(rows) == len(texts(result))
    ]


def _is_ours(row: Row) -> bool:
    return row["tier"] != "-"


def _label(row: Row) -> str:
    return row["title"] + (", full" if row["tier"] == "full" else "")


def _is_calibrated(row: Row) -> bool:
    return row["method"].startswith("cal-")


def quality(result: Result) -> list[str]:
    """All methods by bits."""
    rows = [row for row in by_method(result) if not _is_calibrated(row)]
    columns = [f"KL, {name}" for name in texts(result)]
    lines = [
        f"| method | bits | KL | {' | '.join(columns)} | top-1 | centred vNMSE K / V |",
        "|---|---|---|" + "---|" * (len(columns) + 2),
    ]
    for row in sorted(rows, key=lambda row: (round(row["bits_per_element"], 2), row["kl"])):
        label = f"**{_label(row)}**" if _is_ours(row) else row["title"]
        kls = " | ".join(f"{row['kls'][name]:.2e}" for name in texts(result))
        lines.append(
            f"| {label} | {row['bits_per_element']:.2f} | {row['kl']:.2e} | {kls} | {row['top1']:.3f} "
            f"| {row['key_centred_vnmse']:.1e} / {row['value_centred_vnmse']:.1e} |"
        )
    return lines + unfinished(result)


def unfinished(result: Result) -> list[str]:
    """What an interrupted run has left out."""
    measured = len({row["method"] for row in by_method(result)})
    if measured == result["methods"]:
        return []
    return ["", f"The run was interrupted: {result['methods'] - measured} of {result['methods']} methods are missing."]


def verdicts(result: Result) -> list[str]:
    """For each of our methods, which baselines do better with as many bits, in words."""
    rows = by_method(result)
    baselines = [row for row in rows if not _is_ours(row)]
    lines = []
    for row in rows:
        if not _is_ours(row) or _is_calibrated(row):
            continue
        rivals = [other for other in baselines if other["bits_per_element"] <= row["bits_per_element"] + _EQUAL]
        better = sorted((other for other in rivals if other["kl"] < row["kl"]), key=lambda other: other["kl"])
        start = f"- {_label(row)} ({row['bits_per_element']:.2f} bits, KL {row['kl']:.1e})"
        if not rivals:
            lines.append(f"{start}: no baseline here has as few bits.")
        elif not better:
            best = min(rivals, key=lambda other: other["kl"])
            lines.append(
                f"{start}: of the baselines with at most as many bits none has a lower KL; the best is {best['title']} "
                f"({best['bits_per_element']:.2f} bits, {best['kl']:.1e})."
            )
        else:
            names = "; ".join(f"{o['title']} ({o['bits_per_element']:.2f} bits, {o['kl']:.1e})" for o in better)
            lines.append(f"{start}: **worse** than {names}.")
    return lines


def targets(result: Result) -> list[str]:
    """What the project set itself, and what was measured."""
    rows = {(row["method"], row["tier"]): row for row in by_method(result)}
    pair, fine, full = rows.get(("pair", "anchor")), rows.get(("pair-5+3", "anchor")), rows.get(("pair", "full"))
    kivi, sinks, int8 = rows.get(("kivi4-w0", "-")), rows.get(("kivi4-w0-sinks", "-")), rows.get(("int8", "-"))
    checks: list[tuple[str, list[Row | None], Callable[..., tuple[str, bool]]]] = [
        ("recommended pair: at most 4.65 bits, KL at most 1.5e-3", [pair], _within(4.65, 1.5e-3)),
        ("recommended pair: lower KL than KIVI-4 as published", [pair, kivi], _below),
        ("a preset pair: at most 4.95 bits, KL at most 9e-4", [fine], _within(4.95, 9e-4)),
        ("the same: lower KL than KIVI-4 with exact sinks", [fine, sinks], _below),
        ("full decode: at most 8.65 bits, KL at most 1.2e-5", [full], _within(8.65, 1.2e-5)),
        ("full decode: at most a tenth of INT8's vNMSE", [full, int8], _tenth),
    ]
    lines = ["| target | measured | reached |", "|---|---|---|"]
    for target, needed, check in checks:
        found, reached = ("not measured yet", False) if None in needed else check(*needed)
        lines.append(f"| {target} | {found} | {'yes' if reached else '**no**'} |")
    return lines


def _figures(row: Row) -> str:
    return f"{row['title']}: {row['bits_per_element']:.2f} bits, KL {row['kl']:.2e}"


def _within(bits: float, kl: float) -> Callable[[Row], tuple[str, bool]]:
    return lambda row: (_figures(row), row["bits_per_element"] <= bits and row["kl"] <= kl)


def _below(ours: Row, theirs: Row) -> tuple[str, bool]:
    return f"{ours['kl']:.2e}; {_figures(theirs)}", ours["kl"] < theirs["kl"]


def _tenth(ours: Row, int8: Row) -> tuple[str, bool]:
    ratios = [ours[f"{kind}_vnmse"] / int8[f"{kind}_vnmse"] for kind in ("key", "value")]
    return f"{ratios[0]:.3f} of it for keys, {ratios[1]:.3f} for values", max(ratios) <= 0.1


def calibration(result: Result) -> list[str]:
    """Calibrated parameters beside presets of about the same bits, on texts that were not calibrated on."""
    rows = {row["method"]: row for row in by_method(result) if row["tier"] == "anchor"}
    pairs = [("pair", [name for name in result["calibrations"] if not name.endswith("4.95")])]
    pairs.append(("pair-5+3", [name for name in result["calibrations"] if name.endswith("4.95")]))
    columns = [f"KL, {name}" for name in texts(result)]
    lines = [
        f"| parameters | bits K / V | bits | {' | '.join(columns)} | KL | centred vNMSE K / V |",
        "|---|---|---|" + "---|" * (len(columns) + 2),
    ]
    pairs = [(base, [name for name in names if name in rows]) for base, names in pairs if base in rows]
    for base, names in pairs:
        for name in (base, *names):
            row = rows[name]
            kls = " | ".join(f"{row['kls'][text]:.2e}" for text in texts(result))
            lines.append(
                f"| {row['title'] if name == base else calibration_title(name, result)} "
                f"| {row['key_bits']:.2f} / {row['value_bits']:.2f} "
                f"| {row['bits_per_element']:.2f} | {kls} | {row['kl']:.2e} "
                f"| {row['key_centred_vnmse']:.1e} / {row['value_centred_vnmse']:.1e} |"
            )
    lines.append("")
    if not any(names for _, names in pairs):
        lines.append("No calibration is measured yet, so nothing is claimed.")
    for base, names in pairs:
        for name in names:
            ratio = rows[name]["kl"] / rows[base]["kl"]
            word = "pays" if ratio < 1 / _CLEAR else "does not pay" if ratio > _CLEAR else "makes no clear difference"
            lines.append(
                f"- {calibration_title(name, result)}: {ratio:.2f} times the KL of {rows[base]['title']}; it {word}."
            )
    return lines


def calibration_title(name: str, result: Result) -> str:
    """A calibration in words."""
    about = result["calibrations"][name]
    what = {"centred_vnmse": "centred vNMSE", "attention": "attention error"}[about["objective"]]
    per = "each layer" if "-layer" in name else "K and V"
    return f"calibrated by {what} for {per}, {about['budget_bits']:.2f} bits"


# --- ablation --------------------------------------------------------------------------------------


def point(row: Row) -> Row:
    """A row of the ablation, averaged over texts."""
    measured = list(row["texts"].values())
    return {name: mean(one[name] for one in measured) for name in measured[0] if all(name in one for one in measured)}


def of_factor(result: Result, kind: str, factor: str) -> list[tuple[str, Row]]:
    """Settings of a factor in the order of the script, with their figures."""
    found = []
    for row in result["rows"]:
        if row["kind"] == kind:
            found += [(setting, point(row)) for name, setting in row["uses"] if name == factor]
    return found


_FACTORS = {
    "axis": "Grouping axis",
    "alpha": "α",
    "chunk": "Chunk",
    "page": "Page and run (the paper's P)",
    "split": "Split",
    "centre": "Centre",
    "metadata": "Metadata (values: chunks of 32)",
    "sinks": "Sinks",
}
_IDEAS = {"points": "Anchor points", "two scales": "Two scales for a chunk, one each side of its mean"}
_KINDS = {"key": "K", "value": "V"}


def _settings(result: Result, factors: Mapping[str, str]) -> list[str]:
    lines = [
        "| factor | setting | bits | centred vNMSE | full centred vNMSE | KL | top-1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for factor, title in factors.items():
        for kind, letter in _KINDS.items():
            rows = of_factor(result, kind, factor)
            if factor == "alpha":
                rows.sort(key=lambda item: float(item[0]))
            for setting, row in rows:
                lines.append(
                    f"| {title}, {letter} | {setting} | {row['bits']:.3f} | {row['centred_vnmse']:.2e} "
                    f"| {_figure(row, 'full_centred_vnmse', '.2e')} "
                    f"| {_figure(row, 'kl', '.2e')} | {_figure(row, 'top1', '.3f')} |"
                )
    return lines


def _figure(row: Row, name: str, form: str) -> str:
    """A figure, if it was measured."""
    return format(row[name], form) if name in row else "–"


def ablation(result: Result) -> list[str]:
    """One factor at a time."""
    return _settings(result, _FACTORS) + unmeasured(result)


def ideas(result: Result) -> list[str]:
    """Ideas that were tried."""
    return _settings(result, _IDEAS)


def name_of(row: Row) -> str:
    """What a row of the ablation codes with, in few words."""
    if "scheme" in row:
        return row["title"]
    params = row["params"]
    along = "tokens" if params["axis"] == "token" else "channels"
    run, chunk = params["range_size"], params["chunk"]
    group = f"runs of {run}" if run == chunk and params["center"] == "midrange" else f"chunks of {chunk} in {run}"
    words = [f"{params['anchor_bits']}+{params['residual_bits']}", f"{group} {along}", f"α = {params['alpha']:g}"]
    if params["center"] == "mean":
        words.append("mean")
    if params["metadata"] != "u8":
        words.append(params["metadata"])
    if params["sink_tokens"] != 4:
        words.append(f"{params['sink_tokens']} sinks")
    if params["anchor_points"] is not None:
        words.append("fitted points")
    return ", ".join(words)


def front(rows: Iterable[Row], error: str) -> list[Row]:
    """Rows that no other one beats in both bits and error, by rising bits; their figures are added."""
    measured = ({**row, **point(row)} for row in rows)
    points = sorted((row for row in measured if error in row), key=lambda row: (row["bits"], row[error]))
    kept: list[Row] = []
    for row in points:
        if not kept or row[error] < kept[-1][error]:
            kept.append(row)
    return kept


def fronts(result: Result) -> list[str]:
    """The fronts in vNMSE and in KL, of everything that was measured, baselines included."""
    lines = ["| on the front of | | bits | centred vNMSE | KL |", "|---|---|---|---|---|"]
    for kind, letter in _KINDS.items():
        for error, title in (("centred_vnmse", "centred vNMSE"), ("kl", "KL")):
            for row in front((row for row in result["rows"] if row["kind"] == kind), error):
                name = name_of(row)
                lines.append(
                    f"| {title}, {letter} | {name if 'scheme' in row else f'**{name}**'} | {row['bits']:.3f} "
                    f"| {row['centred_vnmse']:.2e} | {_figure(row, 'kl', '.2e')} |"
                )
    return lines


def unmeasured(result: Result) -> list[str]:
    """What an interrupted run has left out."""
    without = sum("kl" not in point(row) for row in result["rows"])
    if not without:
        return []
    return ["", f"The run was interrupted: KL is missing for {without} of {len(result['rows'])} choices."]


def baselines(result: Result) -> list[str]:
    """Baselines, each with our best at no more bits, in words."""
    lines = []
    for kind, letter in _KINDS.items():
        rows = [{**row, **point(row)} for row in result["rows"] if row["kind"] == kind]
        rows = [row for row in rows if "kl" in row]
        ours = [row for row in rows if "params" in row and row["params"]["sink_tokens"] == 4]
        for row in rows:
            if "scheme" not in row or row["scheme"].startswith("two-scales"):
                continue
            near = [other for other in ours if other["bits"] <= row["bits"] + _EQUAL]
            if not near:
                lines.append(f"- {letter}, {row['title']} ({row['bits']:.2f} bits): nothing of ours has as few bits.")
                continue
            best = min(near, key=lambda other: other["kl"])
            verdict = "**better than we are**" if row["kl"] < best["kl"] else "not better"
            lines.append(
                f"- {letter}, {row['title']} ({row['bits']:.2f} bits, KL {row['kl']:.1e}): {verdict}; ours is "
                f"{name_of(best)} ({best['bits']:.2f} bits, KL {best['kl']:.1e})."
            )
    return lines


Section = Callable[[Result], list[str]]
#: Sections of the page: the kind of result, and what makes lines of it.
SECTIONS: Mapping[str, tuple[str, Section]] = {
    "targets": ("quality-lm", targets),
    "quality": ("quality-lm", quality),
    "verdicts": ("quality-lm", verdicts),
    "calibration": ("quality-lm", calibration),
    "ablation": ("ablation", ablation),
    "ideas": ("ablation", ideas),
    "fronts": ("ablation", fronts),
    "baselines": ("ablation", baselines),
}
