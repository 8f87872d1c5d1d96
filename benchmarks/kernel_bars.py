"""Time the three cases in which the kernels on the GPU were furthest from what the device can do.

Few keys, where the backward pass of additive attention had too few programs; one small eager call
of it, where the host sets the pace; and the recurrence with the LSTM cell, beside cuDNN's LSTM of
the same width, which looks at one step where ours looks at all. A path that breaks the rule of
acceptance (tests/ops/rule.py) gets no time.

    python benchmarks/kernel_bars.py --json benchmarks/results/kernel-bars-h200.json
    python benchmarks/kernels_page.py
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import kernels  # noqa: E402
import provenance  # noqa: E402
import recurrence  # noqa: E402
from gpu_time import versions  # noqa: E402
from ops.rule import breaches  # noqa: E402

FEW_KEYS, SMALL = (16, 1000, 37, 300), (64, 64, 64, 512)
LSTM = recurrence.Case("lstm", "additive", 32, 512, paths=("triton",))
#: milliseconds of forward and backward; times of cuDNN's LSTM
FEW_KEYS_BAR_MS, LSTM_BAR = 0.5, 1.3

Record = dict[str, Any]


def additive(shape: kernels.Shape) -> Iterator[Record]:
    """Yield the records of one shape, of the definition and of the kernels."""
    for path, run in (("eager", kernels.eager), ("triton", kernels.by_triton)):
        record: Record = {"case": "additive", "shape": list(shape), "path": path}
        found = []
        if path == "triton":
            found = breaches(run, kernels.row_by_row, kernels.tensors(shape))
        yield record | (
            {"breaches": found} if found else kernels.times(run, kernels.tensors(shape))
        )


def one_thread() -> Record:
    """Return the record of small calls whose backward pass stays in the thread of the caller."""
    with torch.autograd.set_multithreading_enabled(False):
        found = kernels.times(kernels.by_triton, kernels.tensors(SMALL))
    return {"case": "additive", "shape": list(SMALL), "path": "triton, one thread"} | found


def multiplication() -> Record:
    """Return the record of one product of two numbers: what torch takes for any backward pass."""
    x = torch.randn(1, device="cuda", requires_grad=True)
    found = kernels.times(lambda x: [x * 2], {"x": x})
    return {"case": "multiplication", "shape": [1], "path": "eager"} | found


def lstms() -> Iterator[Record]:
    """Yield the records of the recurrence and of cuDNN's LSTM."""
    yield from ({"case": "lstm", **record} for record in recurrence.measure(LSTM))
    yield {"case": "lstm", **recurrence.lstm(LSTM.batch, LSTM.length)}


def render(result: Record) -> str:
    """Return the records as a section of the page."""
    machine, records = result["machine"], result["records"]
    found = {(r["case"], *r.get("shape", ()), r["path"]): r for r in records}
    few, small = found["additive", *FEW_KEYS, "triton"], found["additive", *SMALL, "triton"]
    plain, ours = found["additive", *FEW_KEYS, "eager"], found["lstm", "triton"]
    floor, cudnn = found["multiplication", 1, "eager"], found["lstm", "cuDNN"]
    alone = found.get(("additive", *SMALL, "triton, one thread"))
    ratios = [ours[f"{name}_ms"] / cudnn[f"{name}_ms"] for name in ("forward", "both")]
    lines = [
        "## Bars",
        "",
        provenance.made_by(result),
        f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']},",
        f"CUDA {machine['cuda']}, commit {(result['commit'] or 'unknown')[:12]}.",
        "",
        "Medians in milliseconds, forward and backward: the work on the *device* alone, and eager",
        "calls *in a row*. One multiplication is what torch takes for any backward pass.",
        "",
        "| case | device | in a row | bar |",
        "|---|--:|--:|---|",
        _row("additive attention, few keys", few, str(FEW_KEYS_BAR_MS)),
        _row("the same, plain torch", plain, ""),
        _row("additive attention, one small call", small, "the device's time"),
        *([_row("the same, backward in the caller's thread", alone, "")] if alone else []),
        _row("one multiplication", floor, ""),
        "",
        f"Few keys are {FEW_KEYS}, the small call is {SMALL}:",
        "batch, queries, keys, features, bf16.",
        "",
        f"| batch {LSTM.batch}, length {LSTM.length}, width {recurrence.HIDDEN}, float32 | forward "
        "| both |",
        "|---|--:|--:|",
        *(
            f"| {name} | {record['forward_ms']:.2f} | {record['both_ms']:.2f} |"
            for name, record in (("self-attentive, LSTM cell", ours), ("cuDNN's LSTM", cudnn))
        ),
        f"| ratio (bar: {LSTM_BAR}) | {ratios[0]:.2f} | {ratios[1]:.2f} |",
    ]
    return "\n".join(lines) + "\n"


def _row(case: str, record: Record, bar: str) -> str:
    return f"| {case} | {record['both_device_ms']:.3f} | {record['both_row_ms']:.3f} | {bar} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="measure, and write to FILE")
    parser.add_argument("--commit", help="the commit that is measured, where git does not know it")
    args = parser.parse_args()
    # the thread of the first backward pass finds no context, and makes one
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
    source = provenance.source()
    records = [*additive(FEW_KEYS), *additive(SMALL), one_thread(), multiplication(), *lstms()]
    result = {
        "command": provenance.command(
            ["python", "benchmarks/kernel_bars.py", "--json", str(args.json)]
        ),
        "machine": provenance.machine() | versions(),
        "commit": args.commit or source["commit"],
        "changed_since": source["changed_since"],
        "records": records,
    }
    provenance.write(args.json, result)
    broken = [record for record in records if "breaches" in record]
    print(broken or render(result))
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
