"""Time what each phase of the self-attentive recurrence takes on the GPU, with the LSTM cell.

One launch runs all steps, so no profiler sees its phases. Here the kernel is compiled once more
without one of them at a time, and what the others take without it is subtracted. Without all of
them the barriers are left, at which every multiprocessor waits. The sequence is that of the bar
in `kernel_bars.py`; answers are wrong without a phase, and are not read.

    python benchmarks/recurrence_phases.py --json benchmarks/results/recurrence-phases-h200.json
    python benchmarks/kernels_page.py
"""

import argparse
import ast
import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import provenance  # noqa: E402
import recurrence  # noqa: E402
from gpu_time import versions  # noqa: E402
from kernel_bars import LSTM  # noqa: E402
from regard.ops.self_attentive_rnn import triton_path  # noqa: E402

#: by direction, which is part of the name of the kernel and of its module
PHASES = {
    "forward": ("project", "attend", "cell"),
    "backward": ("cell_backward", "context_backward", "attend_backward", "window_backward"),
}
ROWS = 11  # calls whose median is taken

Record = dict[str, Any]


@contextmanager
def kernel_without(direction: str, phases: tuple[str, ...], folder: Path) -> Iterator[None]:
    """Let the operator run a kernel in which the functions of these phases do nothing."""
    package = triton_path.__package__
    source = Path(str(triton_path.__file__)).with_name(f"triton_{direction}.py")
    tree = ast.parse(source.read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in phases:
            node.body = [ast.Pass()]
    name = "_".join([direction, "without", *phases])
    file = folder / f"{name}.py"  # the compiler reads the source of its functions from a file
    file.write_text(ast.unparse(tree))
    spec = importlib.util.spec_from_file_location(f"{package}.{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = f"{direction}_kernel"
    with mock.patch.object(triton_path, kernel, getattr(module, kernel)):
        yield


def measure(folder: Path) -> Iterator[Record]:
    """Yield milliseconds of both directions, whole and without each phase."""
    given = recurrence.tensors(LSTM, LSTM.batch, LSTM.length)
    run = recurrence.by("triton", LSTM)
    outputs = run(**given)
    cotangent = [torch.randn_like(y) for y in outputs]

    def forward() -> None:
        with torch.no_grad():
            run(**given)

    def backward() -> None:
        torch.autograd.grad(outputs, list(given.values()), cotangent, retain_graph=True)

    for direction, function in (("forward", forward), ("backward", backward)):
        phases = PHASES[direction]
        alone = [(phase,) for phase in phases]
        for without in ((), *alone, phases):
            with kernel_without(direction, without, folder):
                function()
                torch.cuda.synchronize()
                ms = recurrence.median_ms(function, ROWS)
            yield {"direction": direction, "without": list(without), "ms": ms}


def tape_floats() -> int:
    """Return how many floats of the tapes of h, m and k one direction has to read."""
    width = recurrence.HIDDEN
    return LSTM.batch * LSTM.length * (LSTM.length - 1) // 2 * 3 * width


def copy_speed() -> float:
    """Return the bytes per second that a copy of a large tensor reads and writes."""
    x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)

    def copy() -> None:
        y.copy_(x)

    return 2 * x.numel() / (recurrence.median_ms(copy, ROWS) / 1e3)


def render(result: Record) -> str:
    """Return the records as a section of the page."""
    machine, cudnn = result["machine"], result["cudnn"]
    lines = [
        "## The phases of the LSTM cell",
        "",
        provenance.made_by(result),
        f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']},",
        f"CUDA {machine['cuda']}, commit {(result['commit'] or 'unknown')[:12]}.",
        "",
        f"Batch {LSTM.batch}, length {LSTM.length}, width {recurrence.HIDDEN}, float32, in",
        "milliseconds: what a direction takes more with a phase than without it. All",
        "multiprocessors wait for each other after every phase; the barriers are what is left",
        "without all phases, and the rest of the call with its allocations is part of it.",
        "",
        "| direction | " + " | ".join(["whole", "phases", "barriers"]) + " |",
        "|---|--:|---|--:|",
    ]
    for direction, phases in PHASES.items():
        found = {
            tuple(r["without"]): r["ms"] for r in result["records"] if r["direction"] == direction
        }
        parts = ", ".join(f"`{phase}` {found[()] - found[(phase,)]:.2f}" for phase in phases)
        lines.append(f"| {direction} | {found[()]:.2f} | {parts} | {found[phases]:.2f} |")
    size, speed = 4 * result["tape_floats"], result["copy_bytes_per_s"]
    lines += [
        "",
        f"cuDNN's LSTM takes {cudnn['forward_ms']:.2f} forward, {cudnn['both_ms']:.2f} both ways.",
        "Every step looks at all before it, so that each direction reads",
        f"{size / 1e9:.1f} GB of tapes: {1e3 * size / speed:.2f} ms at the {speed / 1e12:.2f} TB/s",
        "of a copy.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", required=True, help="to write")
    parser.add_argument("--commit", help="the commit that is measured, where git does not know it")
    args = parser.parse_args()
    source = provenance.source()
    result: Record = {
        "command": provenance.command(
            ["python", "benchmarks/recurrence_phases.py", "--json", str(args.json)]
        ),
        "machine": provenance.machine() | versions(),
        "commit": args.commit or source["commit"],
        "changed_since": source["changed_since"],
        "tape_floats": tape_floats(),
        "copy_bytes_per_s": copy_speed(),
        "cudnn": recurrence.lstm(LSTM.batch, LSTM.length),
        "records": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for record in measure(Path(folder)):
            result["records"].append(record)
            print(record, flush=True)
            provenance.write(args.json, result)
    print(render(result), end="")


if __name__ == "__main__":
    main()
