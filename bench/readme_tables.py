"""Tables of README from results."""

from __future__ import annotations

from typing import Any

from environment import machine

_OPERATIONS = {
    "encode": "encode",
    "decode_full": "decode, full",
    "decode_anchor": "decode, anchor",
    "save": "save",
    "load": "load, full",
    "load_anchor": "load, anchor only",
}


#: Methods that README shows; the result has all of them.
_IN_README = (
    *("pair", "pair-4+3", "keys", "paper", "int8", "int8-channel", "int4", "int4-g64"),
    *("kivi4-w0", "kvquant4", "turboquant4"),
)


def quality(result: dict[str, Any]) -> list[str]:
    """Methods, keys and values side by side."""
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for row in result["rows"]:
        cells.setdefault((row["method"], row["tier"]), {})[row["kind"]] = row
    lines = [
        "| method | tier | bits K / V | vNMSE K / V | centred vNMSE K / V |",
        "|---|---|---|---|---|",
    ]
    for (method, tier), kinds in cells.items():
        if method not in _IN_README:
            continue
        key, value = kinds["key"], kinds["value"]
        lines.append(
            f"| {result['titles'][method]} | {tier} "
            f"| {key['bits_per_element']:.2f} / {value['bits_per_element']:.2f} "
            f"| {key['vnmse']:.1e} / {value['vnmse']:.1e} "
            f"| {key['centred_vnmse']:.1e} / {value['centred_vnmse']:.1e} |"
        )
    return lines


def throughput(result: dict[str, Any]) -> list[str]:
    """The main shape: both presets, one and two threads; and what the reference backend takes."""
    rows = [row for row in result["rows"] if row["shape"] == result["main_shape"]]
    threads = sorted({row["threads"] for row in rows})
    found = {(row["preset"], row["operation"], row["threads"]): row for row in rows}
    columns = [f"{count} thread{'s' if count > 1 else ''}: GB/s | × copy" for count in threads]
    lines = [
        f"| preset | operation | {' | '.join(columns)} | × copy, processor time |",
        "|---|---|" + "---|" * (2 * len(threads) + 1),
    ]
    for preset, operation in dict.fromkeys((row["preset"], row["operation"]) for row in rows):
        cells = [found[preset, operation, count] for count in threads]
        figures = [f"{cell['gigabytes_per_second']:.2f} | {cell['ratio_to_copy']:.1f}" for cell in cells]
        ratio = cells[0]["ratio_in_processor_time"]
        processor = "–" if ratio is None else f"{ratio:.1f}"
        lines.append(f"| {preset} | {_OPERATIONS[operation]} | {' | '.join(figures)} | {processor} |")
    slowest = max(result["reference_rows"], key=lambda row: row["ratio_in_processor_time"])
    dims = ", ".join(str(length) for length in rows[0]["dims"])
    containers = result["containers"]
    note = (
        f"bfloat16 [{dims}]; GB/s of this input; medians of {rows[0]['rounds']} rounds. The copy is `np.copyto` of the "
        f"same array in the same run, by one thread; the ratio in processor time is that of {threads[0]} thread. "
        f"Containers are on {containers['filesystem']}, in the page cache; save begins with coded streams. "
        f"The reference backend takes at most {slowest['ratio_to_copy']:.0f} copies "
        f"({slowest['ratio_in_processor_time']:.0f} in processor time), for {slowest['operation']} with the "
        f"{slowest['preset']} preset. {machine(result)}."
    )
    return [*lines, "", note, "", _gains(result["scaling"])]


def _gains(scaling: dict[str, Any]) -> str:
    """What several threads gain, in a paragraph."""
    rows, yardsticks = scaling["rows"], scaling["yardsticks"]
    texts = {}
    for where in ("free", "placed"):
        factors = [
            f"{row['preset']} {_OPERATIONS[row['operation']]} {row[where]['speedup']:.2f}" for row in rows if row[where]
        ]
        bounds = [f"{name} {row[where]['speedup']:.2f}" for name, row in yardsticks.items() if row[where]]
        texts[where] = f"{'; '.join(factors)} (in the same run: {', '.join(bounds)})"
    work = max(row[where]["work"] for row in rows for where in texts if row[where])
    return (
        f"Many calls in a row, as for the layers of a cache, gain these factors with {scaling['threads']} threads, "
        f"where the scheduler places them: {texts['free']}. "
        f"With each on a processor of its own: {texts['placed']}. "
        "Arithmetic in registers and a plain copy are what the machine allows. In processor time, the work of "
        f"{scaling['threads']} threads is at most {work:.0%} of that of one."
    )


def _speed(pair: list[dict[str, Any]], sizes: list[int], operation: str) -> tuple[float, float]:
    """GB/s, and ratio to the copy in processor time, of keys and values together."""
    both = [row[operation] for row in pair]
    ratio = sum(one["processor_milliseconds"] for one in both) / sum(one["copy_processor_milliseconds"] for one in both)
    return sum(sizes) / sum(one["milliseconds"] for one in both) / 1e6, ratio


def _error(row: dict[str, Any]) -> str:
    if row["vnmse"] is None:
        return "–"
    return f"{row['vnmse']:.1e}" if row["vnmse"] else "0"


def peers(result: dict[str, Any]) -> list[str]:
    """All schemes, keys and values side by side, speeds of both together; those that did not run, at the end."""
    pairs: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        pairs.setdefault(row["peer"], []).append(row)
    sizes = [result["speed_on"][kind]["bytes"] for kind in ("key", "value")]
    lines = [
        "| scheme | stores | bits K / V | vNMSE K / V | encode: GB/s | × copy | decode: GB/s | × copy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for pair in pairs.values():
        bits = " / ".join(f"{row['bits_per_element']:.2f}" for row in pair)
        errors = " / ".join(_error(row) for row in pair)
        speeds = [_speed(pair, sizes, operation) for operation in ("encode", "decode")]
        cells = " | ".join(f"{rate:.2f} | {ratio:.1f}" for rate, ratio in speeds)
        lines.append(f"| {pair[0]['title']} | {pair[0]['stores']} | {bits} | {errors} | {cells} |")
    lines += [f"| {one['title']} | {one['stores']} | {one['reason']} | | | | | |" for one in result["missing"]]
    size = result["speed_on"]["key"]
    data = result["data"]["file"] or "synthetic values, for speed alone"
    note = (
        f"{data}; bits and errors are those of the whole file, speeds those of one thread on bfloat16 "
        f"{size['dims']} made of it, keys and values together; the ratios to the copy are those of processor times. "
        f"ggml: {result['ggml']}. {machine(result)}."
    )
    return [*lines, "", note]
