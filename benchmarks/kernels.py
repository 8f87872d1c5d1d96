"""Times the Triton kernels of additive attention against plain torch and `torch.compile`.

The gate comes first: a path that breaks the rule of acceptance (tests/ops/rule.py) on the whole
shape gets no time. A path is timed in two ways: `in a row`, calls from eager code one after the
other, in which the slower of host and device sets the pace; and on the `device` alone, by
replaying a CUDA graph of one call. A sweep over lengths is for the figures.

    python benchmarks/kernels.py --json benchmarks/results/kernels-h200.json
    python benchmarks/render_kernels.py

The second writes docs/kernels.md; `--render FILE` prints its section of these records.
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
from gpu_time import graph_of, row_ms, versions  # noqa: E402
from kernels_page import render, row  # noqa: E402
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

Op = Callable[..., list[Tensor]]
Shape = tuple[int, int, int, int]


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


def tensors(shape: Shape) -> dict[str, Tensor]:
    B, T, S, D = shape
    shapes = {"query": (B, T, D), "key": (B, S, D), "v": (D,), "value": (B, S, D)}
    torch.manual_seed(0)
    return {
        name: torch.randn(s, device="cuda").bfloat16().requires_grad_()
        for name, s in shapes.items()
    }


def measure(shape: Shape) -> Iterator[dict[str, Any]]:
    """One record for each way to run one shape."""
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
    """Whether the definition of a shape fits into memory so many times."""
    B, T, S, D = shape
    needed = times * EAGER_TENSORS * torch.bfloat16.itemsize * B * T * S * D
    return needed < 0.9 * torch.cuda.get_device_properties(0).total_memory


def times(run: Op, inputs: dict[str, Tensor], *, graph: bool = True) -> dict[str, Any]:
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
        if graph:
            found[f"{name}_device_ms"] = median_ms(graph_of(function).replay)
    return found


def median_ms(function: Callable[[], None]) -> float:
    """The median over rows of calls; events stand before and after a row."""
    once = row_ms(function, 1)
    calls = min(20, max(1, round(ROW_MS / once)))
    rows = min(15, max(3, round(1e3 * PATIENCE / (once * calls))))
    return statistics.median(row_ms(function, calls) for _ in range(rows))


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
    source = report.source()
    result: dict[str, Any] = {
        "command": report.command(["python", "benchmarks/kernels.py", "--json", str(args.json)]),
        "machine": report.machine() | versions(),
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
            report.write(args.json, result)
    report.write(args.json, result | {"complete": True})
    sys.exit(any("breaches" in record for record in [*result["records"], *result["sweep"]]))


if __name__ == "__main__":
    main()
