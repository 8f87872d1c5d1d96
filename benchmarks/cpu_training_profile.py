"""Profile training steps on a CPU: the share of matrix products, and the least time they can take.

For each case of cases.py, it counts the multiplications of a step from the shapes of its products,
measures the rate at which this chip multiplies large matrices, and profiles some steps by operator.
The products at that rate are the floor of any implementation in 32 bits, and their share of a step
says how much faster it could become. The work of the fastest other toolkit, whose name comes from
the JSON of run_all.py, is counted from the sizes of its layers.

`--rounds 0` leaves out the comparison of steps with the paths and the memory of earlier versions,
which alternates both and reports the ratio of their CPU seconds.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from cases import CASES, WORDS, Attentive, Case
from provenance import ROOT, command, machine, source
from regard import ops
from regard.training import allocator
from toolkit import prepared

#: batches of a case, those of middle lengths of the first 16
BATCHES: Final = 4
SPECIAL: Final = 4
#: groups of operators, by the beginning of their names; the first that fits
GROUPS: Final = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "layers of oneDNN": ("aten::mkldnn_rnn_layer",),
    "attention": ("aten::_scaled_dot_product",),
    "kernels of regard": ("AttentiveCpuFunction",),
    "optimiser": ("aten::_fused_adamw_",),
    "norm of gradients": ("aten::linalg_vector_norm", "aten::_foreach_norm"),
    "copies and fills": ("aten::copy_", "aten::fill_", "aten::cat", "aten::zero_"),
}


def gemm_rate(seconds: float = 3.0, size: int = 1024) -> float:
    """Return the best rate of a large product, in multiply-adds per second of CPU time.

    Others that use the machine lower it, also by the caches and the units of a core they share.
    """
    x, y, best = torch.randn(size, size), torch.randn(size, size), 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.process_time()
        torch.mm(x, y)
        best = max(best, size**3 / (time.process_time() - started))
    return best


def multiply_adds(name: str, shapes: list[list[int]]) -> int:
    """Return the multiply-adds of an operator, from the shapes of its inputs."""
    if name in ("aten::mm", "aten::bmm"):
        a, b = shapes[:2]
        return a[-2] * a[-1] * b[-1] * (a[0] if len(a) == 3 else 1)
    if name in ("aten::addmm", "aten::addmm_"):
        a, b = shapes[1:3]
        return a[0] * a[1] * b[1]
    if name.startswith("aten::mkldnn_rnn_layer"):
        (length, rows, width), (gates, _), (_, hidden) = shapes[:3]
        passes = 2 if name.endswith("backward") else 1
        return passes * length * rows * gates * (width + hidden)
    return 0


def model_products(case: Case, system: str) -> tuple[int, int]:
    """Return the multiply-adds of a forward pass for a source and for a target token.

    Those of attention scores and contexts are left out. OpenNMT-py and Eole have a layer of the
    decoder's width between `[s; c]` and the vocabulary; regard scores `[s; c]` itself.
    """
    n, vocab = case.sizes, WORDS + SPECIAL
    if isinstance(n, Attentive):
        block = 4 * n.dim**2 + 2 * n.dim * n.feed_forward
        cross = 2 * n.dim**2
        return n.layers * (block + cross), n.layers * (block + cross) + n.dim * vocab
    gates = {"gru": 3, "lstm": 4}[n.cell]
    encoder = gates * n.hidden * (n.embed + n.hidden // 2) + n.hidden**2
    decoder = gates * n.hidden * (n.embed + 2 * n.hidden) + n.hidden**2
    vocab = 43 if case.tokenizers[1] == "space" else vocab
    wide = 2 * n.hidden
    output = wide * vocab if system == "regard" else n.hidden * (wide + vocab)
    return encoder, decoder + output


def fastest_peer(file: Path, name: str) -> dict[str, Any]:
    """Return the record of the fastest other toolkit in a case, in 32 bits."""
    records = json.loads(file.read_text())["records"]
    peers = [r for r in records if r["case"] == name and r["mode"] == "train"]
    peers = [r for r in peers if r["system"] != "regard" and r["precision"] == "32"]
    found: dict[str, Any] = max(peers, key=lambda record: record["tokens_per_s"])
    return found


class Steps:
    """Training steps of a case on fixed batches."""

    def __init__(self, args: argparse.Namespace, name: str, folder: str) -> None:
        self.task = prepared(args, name, folder)
        self.learner, taken, epoch, batch = self.task.learner, [], 0, 0
        for _ in range(16):
            shares, epoch, batch = self.task.batches.take(epoch, batch)
            taken.append(shares)
        taken.sort(key=lambda shares: shares[0].global_tokens)
        middle = (len(taken) - BATCHES) // 2
        self.batches, self.number = taken[middle : middle + BATCHES], 0
        self.learner.objective.train()

    def take(self, shares: Any) -> None:
        """Take one step; the learning rate is so low that the work of a batch stays the same."""
        self.number += 1
        self.learner.backward(shares)
        self.learner.clip()
        self.learner.step(self.number, 1e-7)

    def tokens(self) -> dict[str, int]:
        """Count tokens as the comparison does, and the positions that the layers compute."""
        corpus = self.task.batches.epochs.corpus
        found: dict[str, int] = defaultdict(int)
        for shares in self.batches:
            src = corpus.src_lengths[shares[0].rows]
            tgt = corpus.tgt_lengths[shares[0].rows] + 1
            found["pairs"] += len(src)
            found["src"] += int(src.sum()) - len(src)
            found["tgt"] += int(tgt.sum())
            found["src_positions"] += len(src) * int(src.max())
            found["tgt_positions"] += len(tgt) * int(tgt.max())
        return dict(found)


def profiled(steps: Steps) -> dict[str, Any]:
    """Profile one step of each batch: shares of time by group, and multiply-adds."""
    for shares in steps.batches:
        steps.take(shares)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        for shares in steps.batches:
            steps.take(shares)
    times: dict[str, float] = defaultdict(float)
    work = 0
    for event in found.key_averages(group_by_input_shape=True):
        work += event.count * multiply_adds(event.key, event.input_shapes)
        group = next((g for g, names in GROUPS.items() if event.key.startswith(names)), "others")
        times[group] += event.self_cpu_time_total
    total = sum(times.values())
    return {"shares": {g: times[g] / total for g in (*GROUPS, "others")}, "multiply_adds": work}


def compared(steps: Steps, rounds: int) -> dict[str, Any]:
    """Alternate steps of earlier versions with those of this one; return CPU seconds of both.

    A round has one step of each batch, after one that finds the memory of the other version.
    """
    libc = allocator._glibc()

    def run(backend: str, limits: dict[int, int]) -> float:
        if libc is not None:
            allocator._set(libc, limits)
        with ops.use_backend(backend):
            steps.take(steps.batches[0])
            started = time.process_time()
            for shares in steps.batches:
                steps.take(shares)
            return (time.process_time() - started) / len(steps.batches)

    before, after = [], []
    for _ in range(rounds):
        before.append(run("torch", allocator.USUAL))
        after.append(run("auto", allocator.KEPT))
    ratios = sorted(new / old for new, old in zip(after, before, strict=True))
    return {
        "rounds": rounds,
        "before_cpu_s": median(before),
        "after_cpu_s": median(after),
        "ratio": median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
    }


def report(args: argparse.Namespace, name: str, rate: float) -> dict[str, Any]:
    """Return all figures of a case."""
    case, peer = CASES[name], fastest_peer(args.peers, name)
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(args, name, folder)
        tokens, found = steps.tokens(), profiled(steps)
        counted = tokens["src"] + tokens["tgt"]
        floor = found["multiply_adds"] / rate / counted
        products = {}
        for system in ("regard", peer["system"]):
            src, tgt = model_products(case, system)
            eos = tokens["pairs"] if system == "regard" else 0
            products[system] = (src * (tokens["src"] + eos) + tgt * tokens["tgt"]) / counted
        return {
            "case": name,
            "batches": BATCHES,
            "tokens": tokens,
            **found,
            "floor_ms_per_1000_tokens": 1e6 * floor,
            "peer": {key: peer[key] for key in ("system", "weights", "tokens_per_s")},
            "weights": steps.task.summary.weights,
            "forward_multiply_adds_per_token": products,
            **({"comparison": compared(steps, args.rounds)} if args.rounds else {}),
        }


def table(whole: dict[str, Any]) -> str:
    """Return the figures of all cases as Markdown."""
    header = ["case", "weights, regard's / peer's", "multiply-adds of a token, regard's / peer's"]
    header += [f"share of {group}" for group in ("products", "attention", "kernels", "optimiser")]
    header += [
        "products alone, ms per 1,000 tokens",
        "at most faster",
        "CPU seconds, after / before",
    ]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    cases = sorted(whole["cases"], key=lambda case: case["case"])
    for case in cases:
        shares, peer = case["shares"], case["peer"]
        products = shares["products"] + shares["layers of oneDNN"]
        own, other = case["forward_multiply_adds_per_token"].values()
        change = case.get("comparison", {}).get("ratio")
        lines.append(
            [
                f"({case['case']})",
                f"{case['weights'] / 1e6:.2f} M / {peer['weights'] / 1e6:.2f} M",
                f"{own / 1e6:.2f} M / {other / 1e6:.2f} M",
                f"{products:.0%}",
                *(f"{shares[g]:.0%}" for g in ("attention", "kernels of regard", "optimiser")),
                f"{case['floor_ms_per_1000_tokens']:.0f}",
                f"{1 / products:.2f}x",
                "" if change is None else f"{change:.2f}",
            ]
        )
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    systems = ", ".join(f"({c['case']}) {c['peer']['system']}" for c in cases)
    threads = f"{whole['threads']} thread{'s' if whole['threads'] > 1 else ''}"
    return (
        f"{text}\n{whole['machine']['cpu']}, {threads}, {whole['gflops']:.0f} GFLOP/s in a product "
        f"of 1,024 rows and columns; measured at {(whole['commit'] or '')[:12]}. Fastest peers: "
        f"{systems}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("REGARD_DATA", ROOT.parent / "shared" / "data"))
    results = ROOT / "benchmarks" / "results"
    parser.add_argument("--data", type=Path, default=default, help="folder of the data sets")
    parser.add_argument("--peers", type=Path, default=results / "toolkit-train.json")
    parser.add_argument("--cases", default=",".join(CASES), help="with commas between them")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8, help="of the comparison with before")
    parser.add_argument(
        "--rate", type=float, help="multiply-adds per second; measured if not given"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--render", type=Path, metavar="FILE", help="print the table of a FILE")
    args = parser.parse_args()
    if args.render:
        print(table(json.loads(args.render.read_text())), end="")
        return
    args.device, args.precision = "cpu", "32"
    torch.set_num_threads(args.threads)
    rate, cases = args.rate or gemm_rate(), []
    for name in args.cases.split(","):
        cases.append(report(args, name, rate))
        print(json.dumps(cases[-1]), flush=True)
    if args.out:
        about = {"command": command(["python", *sys.argv]), "machine": machine(), **source()}
        whole = {**about, "gflops": 2e-9 * rate, "threads": args.threads, "cases": cases}
        args.out.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
