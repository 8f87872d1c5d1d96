"""Time the CPU kernels of additive attention and of the self-attentive recurrence.

The gate comes first: a path that breaks the rule of acceptance (tests/ops/rule.py) on the whole
shape gets no time. Additive attention is timed against the definition in plain torch (`eager`) and
`torch.compile` of it, the recurrence against the definition, a loop in Python. Paths take turns, so
that a busy moment disturbs all of them.

    python benchmarks/cpu_kernels.py --json benchmarks/results/cpu-kernels.json
    python benchmarks/kernels_page.py
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# as `regard` has it: threads wait awake for a short time only
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import provenance  # noqa: E402
from ops.rule import breaches  # noqa: E402
from regard import ops  # noqa: E402
from regard.ops.additive_attention.reference import additive_attention as reference  # noqa: E402
from regard.ops.self_attentive_rnn import GATES, Cell  # noqa: E402

#: batch, queries, keys, features; the values are as wide as the features
SHAPES = [(32, 64, 64, 256), (4, 256, 256, 256), (16, 20, 20, 128), (64, 1, 64, 256)]
#: batch, length, hidden
RECURRENCE = (16, 128, 256)
CELLS: tuple[Cell, ...] = ("rnn", "gru", "lstm")
SCORES = ("dot", "scaled dot", "additive")
OPS = ("additive_attention", "self_attentive_rnn")
TURNS = 25

Op = Callable[..., list[Tensor]]


def eager(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> list[Tensor]:
    return [reference(query, key, v, value).context]


def by_kernels(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> list[Tensor]:
    with ops.use_backend("cpu"):
        return [ops.additive_attention(query, key, v, value).context]


def additive(shape: tuple[int, int, int, int]) -> dict[str, Any]:
    """Return one record: milliseconds and MiB of every path, and breaches of the rule."""
    B, T, S, D = shape
    shapes = {"query": (B, T, D), "key": (B, S, D), "v": (D,), "value": (B, S, D)}
    inputs = random(shapes)
    record: dict[str, Any] = {"op": "additive_attention", "sizes": list(shape)}
    record["breaches"] = breaches(by_kernels, eager, inputs)
    paths: dict[str, Op] = {"eager": eager, "compile": torch.compile(eager, dynamic=False)}
    if not record["breaches"]:
        paths["cpu"] = by_kernels
    record["paths"] = measure(paths, inputs)
    torch.compiler.reset()
    return record


def recurrence(cell: Cell, kind: str) -> dict[str, Any]:
    """Return one record of the recurrence, without torch.compile, which would unroll all steps."""
    B, L, H = RECURRENCE
    shapes: dict[str, tuple[int, ...]] = {
        "inputs": (B, L, GATES[cell] * H),
        "recurrent_weight": (GATES[cell] * H, H),
    }
    if cell == "lstm":
        shapes["query_inputs"] = (B, L, H)
    if kind != "dot":
        shapes |= {"query_weight": (H, H), "key_weight": (H, H)}
    if kind == "additive":
        shapes["v"] = (H,)

    def by(backend: str) -> Op:
        def run(inputs: Tensor, recurrent_weight: Tensor, **more: Tensor) -> list[Tensor]:
            query_inputs = more.pop("query_inputs", None)
            score = (
                ops.AdditiveScore(**more)
                if kind == "additive"
                else ops.DotScore(1.0 if kind == "dot" else H**-0.5, **more)
            )
            with ops.use_backend(backend):
                output = ops.self_attentive_rnn(
                    inputs, recurrent_weight, score, cell=cell, query_inputs=query_inputs
                )
            return [output.hidden]

        return run

    inputs = random(shapes)
    record: dict[str, Any] = {"op": "self_attentive_rnn", "cell": cell, "score": kind}
    record |= {"sizes": list(RECURRENCE)}
    record["breaches"] = breaches(by("cpu"), by("reference"), inputs)
    paths = {"eager": by("reference"), "torch": by("torch")}
    if not record["breaches"]:
        paths["cpu"] = by("cpu")
    record["paths"] = measure(paths, inputs, turns=9)
    return record


def random(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return random inputs; weights are scaled by their width to keep a recurrence stable."""
    torch.manual_seed(0)
    return {
        name: (torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) < 3 else 1.0)).requires_grad_()
        for name, shape in shapes.items()
    }


def measure(
    paths: dict[str, Op], inputs: dict[str, Tensor], turns: int = TURNS
) -> dict[str, dict[str, float | None]]:
    """Return medians in milliseconds, the minimum of forward and both, and peak memory in MiB."""
    calls = {name: (forward_of(run, inputs), both_of(run, inputs)) for name, run in paths.items()}
    found: dict[str, dict[str, Any]] = {name: {"forward": [], "both": []} for name in paths}
    for name, (forward, both) in calls.items():
        forward()
        both()  # compiles what is to be compiled
        found[name]["peak_mib"] = peak_mib(both)
    for _ in range(turns):
        for name, pair in calls.items():
            for kind, function in zip(("forward", "both"), pair, strict=True):
                start = time.perf_counter()
                function()
                found[name][kind].append((time.perf_counter() - start) * 1e3)
    return {
        name: {
            "forward_ms": statistics.median(times["forward"]),
            "both_ms": statistics.median(times["both"]),
            "least_ms": min(times["both"]),
            "peak_mib": times["peak_mib"],
        }
        for name, times in found.items()
    }


def forward_of(run: Op, inputs: dict[str, Tensor]) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            run(**inputs)

    return forward


def both_of(run: Op, inputs: dict[str, Tensor]) -> Callable[[], None]:
    def both() -> None:
        outputs = run(**inputs)
        cotangents = [torch.ones_like(y) for y in outputs]
        torch.autograd.grad(outputs, list(inputs.values()), cotangents)

    return both


def peak_mib(function: Callable[[], None]) -> float | None:
    """Return the peak memory of a call beyond that before it (Linux only)."""
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    reset.write_text("5")  # forgets the peak so far
    before = provenance.peak_rss_mb()
    function()
    return max(0.0, provenance.peak_rss_mb() - before)


def seconds_to_compile(op: str) -> dict[str, float]:
    """Return seconds of the first call in a new process, with numba's cache empty and filled."""
    import os
    import subprocess
    import tempfile

    code = (
        "import time, torch, regard.ops; start = time.perf_counter();"
        f"import regard.ops.{op}.cpu_path; print(time.perf_counter() - start)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"NUMBA_CACHE_DIR": folder}
        first, again = (
            float(subprocess.run([sys.executable, "-c", code], env=environment, check=True,
                                 capture_output=True, text=True).stdout)
            for _ in range(2)
        )  # fmt: skip
    return {"compile_s": first, "from_cache_s": again}


def render(result: dict[str, Any]) -> str:
    """Return the records as a section of the page."""
    machine, start = result["machine"], result["start"]
    lines = [
        "## On the CPU",
        "",
        provenance.made_by(result),
        f"{machine['cpu']}, {machine['threads']} threads, Python {machine['python']}, "
        f"torch {machine['torch']}, numba {machine['numba']}, "
        f"commit {(result['commit'] or 'unknown')[:12]}.",
        "",
        "float32, medians in milliseconds of forward, and of forward and backward. `eager` is the",
        "definition in plain torch, `compile` is `torch.compile` of it, `torch` the recurrence",
        "with a backward pass by hand, `cpu` the kernels, which keep the rule of acceptance on the",
        "whole shape before they are timed. *least* is the least time of both, which other work on",
        "the machine disturbs least; *times* how much longer it is than that of `cpu`.",
        "",
        *(
            f"- `{op}`: the first call of a process loads the kernels, in "
            f"{found['from_cache_s']:.1f} s from the cache; the first of all compiles them, in "
            f"{found['compile_s']:.1f} s."
            for op, found in start.items()
        ),
        "",
        "| operator | sizes | path | forward | both | least | times | peak MiB |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    lines += [row for record in result["records"] for row in rows(record)]
    return "\n".join(lines) + "\n"


def rows(record: dict[str, Any]) -> list[str]:
    name = " ".join(record[part] for part in ("op", "cell", "score") if part in record)
    sizes = ", ".join(map(str, record["sizes"]))
    if record["breaches"]:
        return [f"| {name} | {sizes} | cpu | breaks the rule: {'; '.join(record['breaches'])} ||||"]
    best = record["paths"]["cpu"]["least_ms"]
    return [
        f"| {name} | {sizes} | {path} | {found['forward_ms']:.2f} | {found['both_ms']:.2f} "
        f"| {found['least_ms']:.2f} | {found['least_ms'] / best:.1f} "
        f"| {'' if found['peak_mib'] is None else format(found['peak_mib'], '.0f')} |"
        for path, found in record["paths"].items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="measure, and write to FILE")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: 2)")
    args = parser.parse_args()
    import numba

    torch.set_num_threads(args.threads)
    versions = {"torch": torch.__version__, "numba": numba.__version__, "threads": args.threads}
    result: dict[str, Any] = {
        "command": provenance.command(
            ["python", "benchmarks/cpu_kernels.py", "--json", str(args.json)]
        ),
        "machine": provenance.machine() | versions,
        **provenance.source(),
        "start": {op: seconds_to_compile(op) for op in OPS},
        "records": [],
    }
    tasks: list[tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]]
    tasks = [(additive, (shape,)) for shape in SHAPES]
    tasks += [(recurrence, (cell, kind)) for cell in CELLS for kind in SCORES]
    for task, sizes in tasks:
        result["records"].append(task(*sizes))
        print("\n".join(rows(result["records"][-1])), flush=True)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(any(record["breaches"] for record in result["records"]))


if __name__ == "__main__":
    main()
