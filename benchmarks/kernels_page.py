"""The records of benchmarks/kernels.py as a section of a page, and as figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report

#: `tanh.approx.f32` on an H200, measured: 16 units on each of 132 multiprocessors
TANH_CEILING = 4.09e12

#: the ways to run it, and what figures call them
PATHS = {"eager": "eager", "compile": "torch.compile", "triton": "kernels"}
TITLES = {
    "forward_ms": {"title": "forward", "ylabel": "milliseconds"},
    "both_ms": {"title": "forward and backward", "ylabel": "milliseconds"},
    "both_peak_mib": {"title": "forward and backward", "ylabel": "peak memory, MiB"},
}

Record = dict[str, Any]


def render(result: Record, figures: Sequence[str] = ()) -> str:
    """The records as a section of a page, with the figures that it finds at these places."""
    machine, records = result["machine"], result["records"]
    lines = [
        "## Additive attention",
        "",
        report.made_by(result),
        f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']},",
        f"CUDA {machine['cuda']}, commit {(result['commit'] or 'unknown')[:12]}.",
        "",
        "bf16, medians in milliseconds. `eager` is the definition in plain torch, `compile` is",
        "`torch.compile` of it, `triton` the kernels, which keep the rule of acceptance on the",
        "whole shape before they are timed. *device*: the work on the GPU alone (a CUDA graph,",
        "replayed). *in a row*: eager calls one after the other, Python and launches included; for",
        "small shapes the host sets that pace.",
        "The peak is the most memory beyond the inputs in forward and backward.",
        "",
        "| B, T, S, D | path | forward, device | forward, in a row | both, device | both, in a row "
        "| peak MiB |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    lines += [row(record) for record in records]
    lines += [
        "",
        "### Against the tanh units",
        "",
        f"They evaluate {TANH_CEILING / 1e12:.2f} T tanh/s. The kernels need half a reciprocal for",
        "an element instead of a tanh. All of the work on the device is counted: exponentials,",
        "scores, softmax and the products with the values.",
        "",
        "| B, T, S, D | elements | forward, T elements/s | of the ceiling |",
        "|---|--:|--:|--:|",
    ]
    lines += [rate(r) for r in records if r["path"] == "triton" and "forward_device_ms" in r]
    if figures:
        lines += ["", "### Against length", "", *about_sweep(result["sweep"]), ""]
        lines += report.cut_short(result, "what is longer is missing")
        lines += [f"![{Path(figure).stem.replace('-', ', ')}]({figure})" for figure in figures]
    return "\n".join(lines) + "\n"


def about_sweep(sweep: list[Record]) -> list[str]:
    """What the figures show, and what they do not."""
    batch, _, _, features = sweep[0]["shape"]
    missing = [f"{r['path']} at {r['shape'][1]}" for r in sweep if "both_row_ms" not in r]
    lines = [
        f"Batch {batch}, {features} features, as many keys as queries, bf16. Times are those of",
        "the work on the device alone; all axes are logarithmic.",
    ]
    if missing:
        lines.append(f"Not measured, for want of memory or of the rule: {', '.join(missing)}.")
    return lines


def draw(sweep: list[Record]) -> dict[str, Any]:
    """Figures by name: time and memory against length."""
    from regard.lab import plots

    time, panels = plots.new_figure(columns=2)
    memory, (panel,) = plots.new_figure()
    for axes, name in zip(
        (*panels, panel), ("forward_ms", "both_ms", "both_peak_mib"), strict=True
    ):
        for i, path in enumerate(PATHS):
            known = [r for r in sweep if r["path"] == path and "both_row_ms" in r]
            axes.plot(
                [r["shape"][1] for r in known],
                [value(r, name) for r in known],
                color=plots.COLOURS[i],
                marker=plots.MARKERS[i],
                label=PATHS[path],
            )
        axes.set(xscale="log", yscale="log", xlabel="queries and keys", **TITLES[name])
        lengths = sorted({r["shape"][1] for r in sweep})
        axes.set_xticks(lengths, [str(n) for n in lengths])
        axes.minorticks_off()
    for axes in (panels[0], panel):
        plots.legend(axes, below=True)
    return {"kernels-time": time, "kernels-memory": memory}


def value(record: Record, name: str) -> float:
    """A number of a record; where no graph was timed, that of calls in a row."""
    device, in_a_row = (name.replace("_ms", f"_{which}_ms") for which in ("device", "row"))
    return float(record.get(device, record.get(in_a_row, record.get(name))))


def row(record: Record) -> str:
    cells = [", ".join(map(str, record["shape"])), record["path"]]
    if "breaches" in record:
        cells += ["breaks the rule: " + "; ".join(record["breaches"]), "", "", "", ""]
    elif "skipped" in record:
        cells += [record["skipped"], "", "", "", ""]
    else:
        columns = ("forward_device_ms", "forward_row_ms", "both_device_ms", "both_row_ms")
        cells += [f"{record[name]:.3f}" if name in record else "" for name in columns]
        cells.append(f"{record['both_peak_mib']:.0f}")
    return "| " + " | ".join(cells) + " |"


def rate(record: Record) -> str:
    B, T, S, D = record["shape"]
    elements = B * T * S * D
    per_second = elements / record["forward_device_ms"] * 1e3
    shape = ", ".join(map(str, record["shape"]))
    share = f"{per_second / TANH_CEILING:.0%}"
    return f"| {shape} | {elements / 1e9:.2f} G | {per_second / 1e12:.2f} | {share} |"
