"""Time the operators on every path of this machine, forward and with backward.

A path is timed only after it has kept the rule of acceptance (tests/ops/rule.py) on the same
shape with one row in the batch, so a wrong answer never gets a time.
"""

import argparse
import json
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.benchmark import Timer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from ops.rule import breaches  # noqa: E402
from regard import ops  # noqa: E402
from regard.errors import BackendError  # noqa: E402
from regard.ops.additive_attention import PATHS as ADDITIVE_PATHS  # noqa: E402
from regard.ops.dot_product_attention import PATHS as DOT_PATHS  # noqa: E402
from regard.ops.self_attentive_rnn import GATES, Cell  # noqa: E402
from regard.ops.self_attentive_rnn import PATHS as RNN_PATHS  # noqa: E402


class Task(NamedTuple):
    """One call of an operator: its paths, the shapes of its inputs, and the call."""

    op: str
    paths: list[str]
    shapes: dict[str, tuple[int, ...]]
    call: Callable[..., list[Tensor]]


def additive(batch: int, q_len: int, kv_len: int, hidden: int) -> Task:
    shapes = {
        "query": (batch, q_len, hidden),
        "key": (batch, kv_len, hidden),
        "v": (hidden,),
        "value": (batch, kv_len, hidden),
    }

    def call(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> list[Tensor]:
        return [ops.additive_attention(query, key, v, value).context]

    return Task("additive_attention", [*ADDITIVE_PATHS], shapes, call)


def dot_product(batch: int, heads: int, length: int, head_dim: int) -> Task:
    shape: tuple[int, ...] = (batch, heads, length, head_dim)
    shapes = dict.fromkeys(("query", "key", "value"), shape)

    def call(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        return [ops.dot_product_attention(query, key, value, causal=True).context]

    return Task("dot_product_attention", [*DOT_PATHS], shapes, call)


def recurrence(cell: Cell, batch: int, length: int, hidden: int) -> Task:
    shapes: dict[str, tuple[int, ...]] = {
        "inputs": (batch, length, GATES[cell] * hidden),
        "recurrent_weight": (GATES[cell] * hidden, hidden),
        "query_weight": (hidden, hidden),
        "key_weight": (hidden, hidden),
    }
    if cell == "lstm":
        shapes["query_inputs"] = (batch, length, hidden)

    def call(
        inputs: Tensor,
        recurrent_weight: Tensor,
        query_weight: Tensor,
        key_weight: Tensor,
        query_inputs: Tensor | None = None,
    ) -> list[Tensor]:
        score = ops.DotScore(hidden**-0.5, query_weight, key_weight)
        output = ops.self_attentive_rnn(
            inputs, recurrent_weight, score, cell=cell, query_inputs=query_inputs
        )
        return [output.hidden]

    return Task("self_attentive_rnn", [*RNN_PATHS], shapes, call)


CPU: list[tuple[Callable[..., Task], dict[str, Any]]] = [
    (additive, {"batch": 8, "q_len": 32, "kv_len": 32, "hidden": 128}),
    (additive, {"batch": 4, "q_len": 128, "kv_len": 128, "hidden": 128}),
    (dot_product, {"batch": 8, "heads": 8, "length": 64, "head_dim": 64}),
    (dot_product, {"batch": 2, "heads": 8, "length": 512, "head_dim": 64}),
    (recurrence, {"cell": "rnn", "batch": 8, "length": 64, "hidden": 128}),
    (recurrence, {"cell": "lstm", "batch": 8, "length": 64, "hidden": 128}),
]
CUDA: list[tuple[Callable[..., Task], dict[str, Any]]] = [
    (additive, {"batch": 64, "q_len": 64, "kv_len": 64, "hidden": 512}),
    (additive, {"batch": 32, "q_len": 256, "kv_len": 256, "hidden": 512}),
    (dot_product, {"batch": 32, "heads": 8, "length": 512, "head_dim": 64}),
    (recurrence, {"cell": "rnn", "batch": 32, "length": 128, "hidden": 512}),
    (recurrence, {"cell": "lstm", "batch": 32, "length": 128, "hidden": 512}),
]


def tensors(task: Task, device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return random inputs; matrices are scaled by their width to keep a recurrence stable."""
    torch.manual_seed(0)
    return {
        name: (torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) == 2 else 1.0))
        .to(device, dtype)
        .requires_grad_()
        for name, shape in task.shapes.items()
    }


def by(path: str, call: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    def run(**inputs: Tensor) -> list[Tensor]:
        with ops.use_backend(path):
            return call(**inputs)

    return run


def measure(
    make: Callable[..., Task],
    sizes: dict[str, Any],
    device: str,
    dtype: torch.dtype,
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """Yield one record for each path: its times, or the reason why there are none."""
    task, one_row = make(**sizes), make(**sizes | {"batch": 1})
    for path in task.paths:
        record: dict[str, Any] = {"op": task.op, "path": path, "sizes": sizes}
        record |= {"device": device, "dtype": str(dtype).removeprefix("torch.")}
        try:
            found = breaches(
                by(path, one_row.call),
                by("reference", one_row.call),
                tensors(one_row, device, dtype),
            )
            record |= (
                {"breaches": found} if found else times(by(path, task.call), task, record, seconds)
            )
        except BackendError as error:
            record["refused"] = str(error)
        yield record


def times(
    run: Callable[..., list[Tensor]], task: Task, record: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Return medians in milliseconds, and on CUDA peak memory beyond the inputs in MiB."""
    inputs = tensors(task, record["device"], getattr(torch, record["dtype"]))
    cotangents = [torch.ones_like(y) for y in run(**inputs)]

    def forward() -> None:
        with torch.no_grad():
            run(**inputs)

    def both() -> None:
        torch.autograd.grad(run(**inputs), list(inputs.values()), cotangents)

    found: dict[str, Any] = {
        "forward_ms": median_ms(forward, seconds),
        "forward_backward_ms": median_ms(both, seconds),
        "peak_mib": None,
    }
    if record["device"] == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        both()
        found["peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return found


def median_ms(function: Callable[[], None], seconds: float) -> float:
    """Return the median over blocks of calls; the timer synchronises CUDA."""
    timer = Timer("f()", globals={"f": function}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=seconds).median * 1e3)


def machine() -> dict[str, Any]:
    """Return what times depend on, without names of the computer or its user."""
    names = [
        line.partition(":")[2].strip()
        for line in (
            Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
        )
        if line.startswith("model name")
    ]
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": names[0] if names else platform.processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def git(*args: str) -> str | None:
    """Return the output of git, or None outside of a checkout."""
    try:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def table(op: str, records: list[dict[str, Any]]) -> Table:
    """Return the records of one operator as a table of 80 columns."""
    result = Table(title=f"{op}: milliseconds forward, and with backward")
    result.add_column(" × ".join(records[0]["sizes"]))
    result.add_column("on")
    result.add_column("path")
    for name in ("forward", "both", "peak MiB"):
        result.add_column(name, justify="right")
    for record in records:
        cells = ["×".join(map(str, record["sizes"].values()))]
        cells += [f"{record['device']} {record['dtype']}", record["path"]]
        if "forward_ms" in record:
            peak = record["peak_mib"]
            cells += [f"{record[name]:.2f}" for name in ("forward_ms", "forward_backward_ms")]
            cells.append("" if peak is None else f"{peak:.0f}")
        else:
            cells.append("wrong" if "breaches" in record else "refused")
        result.add_row(*cells)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records to FILE")
    parser.add_argument("--seconds", type=float, default=0.5, help="least time for each median")
    args = parser.parse_args()
    cases = [(*case, "cpu", torch.float32) for case in CPU]
    if torch.cuda.is_available():
        # the thread of the first backward pass finds no context, and makes one
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
        cases += [(*case, "cuda", t) for case in CUDA for t in (torch.float32, torch.bfloat16)]
    records = [record for case in cases for record in measure(*case, args.seconds)]
    for op in dict.fromkeys(record["op"] for record in records):
        Console().print(table(op, [record for record in records if record["op"] == op]))
    for record in records:
        for breach in record.get("breaches", []):
            print(f"{record['path']} of {record['op']} breaks the rule: {breach}", file=sys.stderr)
    if args.json:
        report = {
            "machine": machine(),
            "commit": git("rev-parse", "HEAD"),
            "changed_since": bool(git("status", "--porcelain")),
            "records": records,
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(any("breaches" in record for record in records))


if __name__ == "__main__":
    main()
