"""Times the Triton kernels of additive attention against plain torch and `torch.compile`.

The gate comes first: a path that breaks the rule of acceptance (tests/ops/rule.py) on the whole
shape gets no time. A path is timed in two ways: `in a row`, calls from eager code one after the
other, in which the slower of host and device sets the pace; and on the `device` alone, by
replaying a CUDA graph of one call.

    python benchmarks/kernels.py --json benchmarks/results/kernels-h200.json
    python benchmarks/kernels.py --render benchmarks/results/kernels-h200.json > docs/kernels.md
"""

import argparse
import gc
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import report  # noqa: E402
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
#: `tanh.approx.f32` on an H200, measured: 16 units on each of 132 multiprocessors
TANH_CEILING = 4.09e12

Op = Callable[..., list[Tensor]]


def by_triton(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> list[Tensor]:
    with ops.use_backend("triton"):
        return [ops.additive_attention(query, key, v, value).context]


def eager(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> list[Tensor]:
    return [reference(query, key, v, value).context]


def row_by_row(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> list[Tensor]:
    """The definition with one row of the batch in memory at a time, so that float64 fits."""

    def one(q: Tensor, k: Tensor, y: Tensor) -> Tensor:
        return reference(q[None], k[None], v, y[None]).context

    rows = zip(query, key, value, strict=True)
    return [torch.cat([checkpoint(one, *row, use_reentrant=False) for row in rows])]


def tensors(shape: tuple[int, int, int, int]) -> dict[str, Tensor]:
    B, T, S, D = shape
    shapes = {"query": (B, T, D), "key": (B, S, D), "v": (D,), "value": (B, S, D)}
    torch.manual_seed(0)
    return {
        name: torch.randn(s, device="cuda").bfloat16().requires_grad_()
        for name, s in shapes.items()
    }


def measure(shape: tuple[int, int, int, int]) -> Iterator[dict[str, Any]]:
    """One record for each way to run one shape."""
    paths = {"eager": eager, "compile": torch.compile(eager, dynamic=False), "triton": by_triton}
    for name, run in paths.items():
        record: dict[str, Any] = {"path": name, "shape": list(shape), "dtype": "bfloat16"}
        if name == "triton":
            found = breaches(run, row_by_row, tensors(shape))
            if found:
                yield record | {"breaches": found}
                continue
        yield record | times(run, tensors(shape))
        gc.collect()
        torch.cuda.empty_cache()
        torch.compiler.reset()


def times(run: Op, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Medians in milliseconds, and the most memory beyond the inputs in MiB."""
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
        found[f"{name}_device_ms"] = median_ms(graph_of(function).replay)
    return found


def graph_of(function: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """The work that one call gives to the device, without the host's part in it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def median_ms(function: Callable[[], None], rows: int = 15, calls: int = 20) -> float:
    """The median over rows of calls; events stand before and after a row."""
    found = []
    for _ in range(rows):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / calls)
    return statistics.median(found)


def versions() -> dict[str, Any]:
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
    }


def render(result: dict[str, Any]) -> str:
    """The records as a page."""
    machine, records = result["machine"], result["records"]
    lines = [
        "# Additive attention on the GPU",
        "",
        f"Made by `{result['command']}`, rendered by the same script; no number is typed.",
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
        "## Against the tanh units",
        "",
        f"They evaluate {TANH_CEILING / 1e12:.2f} T tanh/s. The kernels need half a reciprocal for",
        "an element instead of a tanh. All of the work on the device is counted: exponentials,",
        "scores, softmax and the products with the values.",
        "",
        "| B, T, S, D | elements | forward, T elements/s | of the ceiling |",
        "|---|--:|--:|--:|",
    ]
    lines += [rate(r) for r in records if r["path"] == "triton" and "forward_device_ms" in r]
    return "\n".join(lines) + "\n"


def row(record: dict[str, Any]) -> str:
    cells = [", ".join(map(str, record["shape"])), record["path"]]
    if "breaches" in record:
        cells += ["breaks the rule: " + "; ".join(record["breaches"]), "", "", "", ""]
    else:
        columns = ("forward_device_ms", "forward_row_ms", "both_device_ms", "both_row_ms")
        cells += [f"{record[name]:.3f}" for name in columns]
        cells.append(f"{record['both_peak_mib']:.0f}")
    return "| " + " | ".join(cells) + " |"


def rate(record: dict[str, Any]) -> str:
    B, T, S, D = record["shape"]
    elements = B * T * S * D
    per_second = elements / record["forward_device_ms"] * 1e3
    shape = ", ".join(map(str, record["shape"]))
    share = f"{per_second / TANH_CEILING:.0%}"
    return f"| {shape} | {elements / 1e9:.2f} G | {per_second / 1e12:.2f} | {share} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="measure, and write to FILE")
    parser.add_argument("--render", type=Path, metavar="FILE", help="print FILE as a page instead")
    parser.add_argument("--commit", help="the commit that is measured, where git does not know it")
    args = parser.parse_args()
    if args.render:
        print(render(json.loads(args.render.read_text())), end="")
        return
    # the thread of the first backward pass finds no context, and makes one
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
    source = report.source()
    result = {
        "command": report.command(["python", "benchmarks/kernels.py", "--json", str(args.json)]),
        "machine": report.machine() | versions(),
        "commit": args.commit or source["commit"],
        "changed_since": source["changed_since"],
        "records": [],
    }
    for shape in SHAPES:
        for record in measure(shape):
            result["records"].append(record)
            print(row(record), flush=True)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(any("breaches" in record for record in result["records"]))


if __name__ == "__main__":
    main()
