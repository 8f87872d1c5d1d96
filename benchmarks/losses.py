"""Time the training losses on the GPU: torch's functions against the kernels.

Forward and backward, as in a step of training, on the device alone: a CUDA graph of one call is
replayed. The logits are copied at the start of each call, since their gradient is written over
them; that copy is timed by itself and taken off. The gate comes first: kernels that err more than
twice as much as torch does, measured against float64, get no time.

    python benchmarks/losses.py --json benchmarks/results/losses-h200.json
    python benchmarks/kernels_page.py

The second writes docs/kernels.md.
"""

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import provenance  # noqa: E402
from gpu_time import graph_of, row_ms, versions  # noqa: E402
from regard.ops import use_backend  # noqa: E402
from regard.training.losses import cross_entropy, rdrop_loss, takes_kernels  # noqa: E402
from training.losses import ALPHA, breaches, cross_entropies, made, rdrops  # noqa: E402

SMOOTHING = 0.1
#: rows of a call that is put to the rule, replays in a row, rows of them
GATE, REPLAYS, ROWS = 128, 10, 7


class Case(NamedTuple):
    """A loss over a number of target tokens."""

    loss: str
    tokens: int
    vocab: int
    dtype: torch.dtype

    @property
    def passes(self) -> int:
        """Passes over each token."""
        return 2 if self.loss == "R-Drop" else 1

    def run(self, logits: Tensor, target: Tensor, real: Tensor) -> Tensor:
        """Return the summed loss of the active path."""
        if self.passes == 2:
            return rdrop_loss(logits, target, SMOOTHING, ALPHA, real)
        return cross_entropy(logits, target, SMOOTHING, real)

    def breaches(self) -> list[str]:
        """Return breaches of the acceptance rule, on fewer rows."""
        logits, target, real = made(GATE, self.vocab, self.passes, self.dtype, "cuda")
        loss = rdrops if self.passes == 2 else cross_entropies
        return list(breaches(loss, logits, target, SMOOTHING, real, 1.0))


CASES = [
    Case(loss, tokens, vocab, dtype)
    for tokens, vocab in ((4096, 10_000), (8192, 10_000), (4096, 45))
    for dtype in (torch.bfloat16, torch.float32)
    for loss in ("cross entropy", "R-Drop")
]


def measure(case: Case) -> Iterator[dict[str, Any]]:
    """Yield one record for each path."""
    shape = (case.passes * case.tokens, case.vocab)
    source = torch.randn(shape, device="cuda").mul_(4).to(case.dtype)
    target = torch.randint(0, case.vocab, (case.tokens,), device="cuda")
    real = torch.ones(case.tokens, dtype=torch.bool, device="cuda")
    held = torch.empty_like(source)
    copy = device_ms(lambda: held.copy_(source))

    def step() -> None:
        logits = held.copy_(source).detach().requires_grad_()
        torch.autograd.grad(case.run(logits, target, real), logits)

    for path in ("torch", "triton"):
        record: dict[str, Any] = case._asdict() | {"path": path}
        record["dtype"] = str(case.dtype).removeprefix("torch.")
        with use_backend(path):
            found = case.breaches() if path == "triton" else []
            if path == "triton" and not takes_kernels(held):
                found = ["the kernels do not run on this GPU"]
            if found:
                yield record | {"breaches": found}
                continue
            time = device_ms(step) - copy
        # forward and backward read the logits, and backward writes as many
        least = 3 * source.numel() * source.element_size()
        yield record | {"both_ms": time, "gb_per_s": least / time / 1e6}


def device_ms(function: Callable[[], Any]) -> float:
    """Return the median time of replays of one call's CUDA graph."""
    graph = graph_of(function)
    for _ in range(3):
        graph.replay()
    return statistics.median(row_ms(graph.replay, REPLAYS) for _ in range(ROWS))


def render(result: dict[str, Any]) -> str:
    """Return the section of the page: a line for each loss, size and dtype."""
    machine = result["machine"]
    lines = [
        "## The losses of training",
        "",
        provenance.made_by(result),
        f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}, "
        f"commit {(result['commit'] or 'unknown')[:12]}.",
        "",
        "Milliseconds of the device for forward and backward, where the gradient is written over",
        "the logits: `torch` calls torch for many rows at a time, `triton` is one kernel each way.",
        "*GB/s* counts two readings of the logits and one writing, whatever a path does. Kernels",
        "that err more than twice as much as torch does, against float64, would have no time.",
        "",
        "| loss | target tokens | vocabulary | type | torch | triton | times | GB/s |",
        "|---|--:|--:|---|--:|--:|--:|--:|",
    ]
    cases: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for record in result["records"]:
        case = tuple(record[name] for name in ("loss", "tokens", "vocab", "dtype"))
        cases.setdefault(case, {})[record["path"]] = record
    lines += [_table_row(case, paths) for case, paths in cases.items() if len(paths) == 2]
    return "\n".join(lines) + "\n"


def _table_row(case: tuple[Any, ...], paths: dict[str, dict[str, Any]]) -> str:
    loss, tokens, vocab, dtype = case
    head = f"| {loss} | {tokens:,} | {vocab:,} | {dtype} | {paths['torch']['both_ms']:.3f} "
    found = paths["triton"]
    if "breaches" in found:
        return f"{head}| breaks the rule: {'; '.join(found['breaches'])} | | |"
    times = paths["torch"]["both_ms"] / found["both_ms"]
    return f"{head}| {found['both_ms']:.3f} | {times:.1f} | {found['gb_per_s']:,.0f} |"


def row(record: dict[str, Any]) -> str:
    """Return one line of the table."""
    cells = [record[name] for name in ("loss", "tokens", "vocab", "dtype", "path")]
    if "breaches" in record:
        cells += ["breaks the rule: " + "; ".join(record["breaches"]), ""]
    else:
        cells += [f"{record['both_ms']:.4f}", f"{record['gb_per_s']:.0f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records to FILE")
    parser.add_argument("--commit", help="the commit that is measured, where git does not know it")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("The kernels of the losses run on a GPU, and torch sees none: use a CUDA machine.")
    # the thread of the first backward pass finds no context, and makes one
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
    source, typed = provenance.source(), ["python", "benchmarks/losses.py"]
    result: dict[str, Any] = {
        "command": provenance.command([*typed, *(["--json", str(args.json)] if args.json else [])]),
        "machine": provenance.machine() | versions(),
        "commit": args.commit or source["commit"],
        "changed_since": source["changed_since"],
        "smoothing": SMOOTHING,
        "alpha": ALPHA,
        "records": [],
        "complete": False,
    }
    print("| loss | tokens | vocab | type | path | both ms | GB/s at least |")
    print("|---|--:|--:|---|---|--:|--:|")
    for case in CASES:
        for record in measure(case):
            result["records"].append(record)
            print(row(record), flush=True)
            # after each, so that a run that is cut short loses nothing
            provenance.write(args.json, result)
    provenance.write(args.json, result | {"complete": True})
    sys.exit(any("breaches" in record for record in result["records"]))


if __name__ == "__main__":
    main()
