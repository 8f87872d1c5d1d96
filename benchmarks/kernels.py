"""Time the Triton kernels of additive attention against plain torch and `torch.compile`.

The gate comes first: a path that breaks the rule of acceptance (tests/ops/rule.py) on the whole
shape gets no time. A path is timed in two ways: `in a row`, calls from eager code one after the
other, in which the slower of host and device sets the pace; and on the `device` alone, by
replaying a CUDA graph of one call. A sweep over lengths is for the figures.

    python benchmarks/kernels.py --json benchmarks/results/kernels-h200.json
    python benchmarks/kernels_page.py

The second writes docs/kernels.md; `--render FILE` prints its section of these records.
"""

import argparse
import gc
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import provenance  # noqa: E402
from gpu_time import graph_of, row_ms, versions  # noqa: E402
from ops.rule import breaches  # noqa: E402
from regard import ops  # noqa: E402
from regard.ops.additive_attention.reference import additive_attention as reference  # noqa: E402

#: batch, queries, keys, features; the values are as wide as the features
SHAPES = [
    (64, 64, 64, 512),
    (32, 256, 256, 512),
    (8, 512, 512, 1024),
    (4, 2048, 2048, 256),
    (64, 1, 512, 512),
]
#: lengths of the sweep, of queries and keys, and what is the same in all of it
LENGTHS = (64, 128, 256, 512, 1024, 2048)
SWEEP_BATCH, SWEEP_FEATURES = 8, 512
#: tensors of all elements that the definition has in memory at once, forward and backward
EAGER_TENSORS = 3
#: seconds that a median may take, and milliseconds of calls between two readings of the clock
PATIENCE, ROW_MS = 0.2, 10.0

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
Op = Callable[..., list[Tensor]]
Shape = tuple[int, int, int, int]


def by_triton(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> list[Tensor]:
    with ops.use_backend("triton"):
        return [ops.additive_attention(query, key, v, value).context]


def eager(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> list[Tensor]:
    return [reference(query, key, v, value).context]


def row_by_row(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> list[Tensor]:
    """Run the definition one row of the batch at a time, so that float64 fits into memory."""

    def one(q: Tensor, k: Tensor, y: Tensor) -> Tensor:
        return reference(q[None], k[None], v, y[None]).context

    rows = zip(query, key, value, strict=True)
    return [torch.cat([checkpoint(one, *row, use_reentrant=False) for row in rows])]


def tensors(shape: Shape) -> dict[str, Tensor]:
    B, T, S, D = shape
    shapes = {"query": (B, T, D), "key": (B, S, D), "v": (D,), "value": (B, S, D)}
    torch.manual_seed(0)
    return {
        name: torch.randn(s, device="cuda").bfloat16().requires_grad_()
        for name, s in shapes.items()
    }


def measure(shape: Shape) -> Iterator[dict[str, Any]]:
    """Yield one record for each path of one shape."""
    paths = {"eager": eager, "compile": torch.compile(eager, dynamic=False), "triton": by_triton}
    for name, run in paths.items():
        record: dict[str, Any] = {"path": name, "shape": list(shape), "dtype": "bfloat16"}
        if name == "triton":
            found = breaches(run, row_by_row, tensors(shape))
            if found:
                yield record | {"breaches": found}
                continue
        if name == "eager" and not fits(shape):
            yield record | {"skipped": "it would not fit into memory"}
            continue
        try:
            # a graph has memory of its own, and so has the stream that it is tried on
            graph = name != "eager" or fits(shape, times=3)
            record |= times(run, tensors(shape), graph=graph)
        except torch.OutOfMemoryError:
            record["skipped"] = "it did not fit into memory"
        yield record
        gc.collect()
        torch.cuda.empty_cache()
        torch.compiler.reset()


def fits(shape: Shape, times: int = 1) -> bool:
    """Return whether this many tensors of a shape fit into memory."""
    B, T, S, D = shape
    needed = times * EAGER_TENSORS * torch.bfloat16.itemsize * B * T * S * D
    return needed < 0.9 * torch.cuda.get_device_properties(0).total_memory


def times(run: Op, inputs: dict[str, Tensor], *, graph: bool = True) -> dict[str, Any]:
    """Return medians in milliseconds, and peak memory beyond the inputs in MiB."""
    cotangent = [torch.randn_like(y) for y in run(**inputs)]

    def forward() -> None:
        with torch.no_grad():
            run(**inputs)

    def both() -> None:
        torch.autograd.grad(run(**inputs), list(inputs.values()), cotangent)

    found = {}
    for name, function in (("forward", forward), ("both", both)):
        for _ in range(5):
            function()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        found[f"{name}_peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        found[f"{name}_row_ms"] = median_ms(function)
        if graph:
            found[f"{name}_device_ms"] = median_ms(graph_of(function).replay)
    return found


def median_ms(function: Callable[[], None]) -> float:
    """Return the median over rows of calls, timed by events."""
    once = row_ms(function, 1)
    calls = min(20, max(1, round(ROW_MS / once)))
    rows = min(15, max(3, round(1e3 * PATIENCE / (once * calls))))
    return statistics.median(row_ms(function, calls) for _ in range(rows))


def render(result: Record, figures: Sequence[str] = ()) -> str:
    """Return the records as a section of the page, with its figures."""
    machine, records = result["machine"], result["records"]
    lines = [
        "## Additive attention",
        "",
        provenance.made_by(result),
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
        lines += provenance.cut_short(result, "what is longer is missing")
        lines += [f"![{Path(figure).stem.replace('-', ', ')}]({figure})" for figure in figures]
    return "\n".join(lines) + "\n"


def about_sweep(sweep: list[Record]) -> list[str]:
    """Return a description of the figures, and of missing measurements."""
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
    """Return figures by name: time and memory over length."""
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
    """Return a number of a record; if no graph was timed, that of consecutive calls."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="measure, and write to FILE")
    parser.add_argument("--render", type=Path, metavar="FILE", help="print FILE as a section")
    parser.add_argument("--commit", help="the commit that is measured, where git does not know it")
    args = parser.parse_args()
    if args.render:
        print(render(json.loads(args.render.read_text())), end="")
        return
    # the thread of the first backward pass finds no context, and makes one
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
    source = provenance.source()
    result: dict[str, Any] = {
        "command": provenance.command(
            ["python", "benchmarks/kernels.py", "--json", str(args.json)]
        ),
        "machine": provenance.machine() | versions(),
        "commit": args.commit or source["commit"],
        "changed_since": source["changed_since"],
        "records": [],
        "sweep": [],
        "complete": False,
    }
    swept = [(SWEEP_BATCH, n, n, SWEEP_FEATURES) for n in LENGTHS]
    for name, shape in [*(("records", s) for s in SHAPES), *(("sweep", s) for s in swept)]:
        for record in measure(shape):
            result[name].append(record)
            print(row(record), flush=True)
            # after each, so that a run that is cut short loses nothing
            provenance.write(args.json, result)
    provenance.write(args.json, result | {"complete": True})
    sys.exit(any("breaches" in record for record in [*result["records"], *result["sweep"]]))


if __name__ == "__main__":
    main()
