"""Measure the constants of the cost model of docs/scale.md, and render its tables.

    python benchmarks/scale_model.py measure         # into benchmarks/results/scale-model.json
    python benchmarks/scale_model.py render          # tables of docs/scale.md and docs/shards.md
    python benchmarks/scale_model.py render --check  # 1 if a page is out of date

`benchmarks/shards.py` and `benchmarks/ray_predict.py` measure the rest.

Training steps are timed in one process, in two that do not talk to each other, and in two that
average their gradients, in turns: other jobs on the machine slow all of them alike.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from provenance import ROOT, command, machine, source, write

RESULTS: Final = ROOT / "benchmarks" / "results"
RESULT: Final = RESULTS / "scale-model.json"
DOCS: Final = ROOT / "docs"
#: MiB that docs/shards.md states as the bound of all processes that encode shards
ENCODING_MB: Final = 2048
PRESET: Final = "transformer"
#: measured here: a small batch, as a core takes
VOCAB: Final = 2000
SENTENCES, LENGTH = 16, 12
#: bytes of a gradient, and of a checkpoint per weight: the weight and both moments of Adam
GRADIENT_BYTES: Final = 4
CHECKPOINT_BYTES: Final = 12
#: assumptions, none of which was measured: bytes per second of a node's links, seconds per hop of a
#: ring, GPUs of a node, tokens of a pair, and seconds between two checkpoints
NVLINK: Final = 300e9
NETWORKS: Final = {"400 Gbit/s": 50e9, "25 Gbit/s": 3.125e9}
HOP_S: Final = 10e-6
NODE: Final = 8
PAIR_TOKENS: Final = 50
CHECKPOINT_EVERY_S: Final = 600
PAIRS: Final = 1e9
GPUS: Final = (8, 64, 512)
RAY_PARTS: Final = ("killed", "throughput", "full_disk", "poisoned", "no_cluster")
Record = dict[str, Any]


def ring_bytes(weights: float, processes: int, sharded: bool = False) -> float:
    """Return the bytes that each process sends per step.

    A ring sends all gradients twice, but for the share that stays (Patarasuk and Yuan, 2009). With
    sharded weights they are gathered before the forward and the backward pass, and gradients are
    scattered: three times.
    """
    return (3 if sharded else 2) * (processes - 1) / processes * GRADIENT_BYTES * weights


def step_seconds(compute: float, sent: float, bandwidth: float, processes: int) -> float:
    """Return the time of a step, with no overlap of computation and network."""
    return compute + sent / bandwidth + 2 * (processes - 1) * HOP_S


# --- measurements ---------------------------------------------------------------------------------


def train_steps(rank: int, world: int, port: int, steps: int) -> Record:
    """Time training steps; with several processes, those that average gradients."""
    import torch
    from torch import distributed, nn

    from regard.models import PRESETS

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = PRESETS[PRESET](VOCAB, VOCAB, "small")

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, src: Any, lengths: Any, tgt: Any) -> Any:
            logits = self.model(src, lengths, tgt[:, :-1]).logits
            return nn.functional.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten())

    objective: Any = Loss()
    if world > 1:
        address = f"tcp://127.0.0.1:{port}"
        distributed.init_process_group("gloo", address, rank=rank, world_size=world)
        objective = nn.parallel.DistributedDataParallel(objective)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    src, tgt = torch.randint(4, VOCAB, (2, SENTENCES, LENGTH))
    lengths = torch.full((SENTENCES,), LENGTH)

    def step() -> None:
        objective(src, lengths, tgt).backward()
        optimizer.step()
        optimizer.zero_grad()

    weights = sum(p.numel() for p in model.parameters())
    step()
    before = loopback_bytes()
    seconds = [timed(step) for _ in range(steps)]
    found = {"weights": weights, "step_s": seconds}
    if world > 1:
        found["loopback_bytes_per_step"] = (loopback_bytes() - before) / steps
        gradients = torch.zeros(weights)
        distributed.barrier()
        found["all_reduce_s"] = [timed(lambda: distributed.all_reduce(gradients)) for _ in seconds]
        distributed.destroy_process_group()
    return found


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def loopback_bytes() -> int:
    """Return the bytes that went through the loopback device so far; 0 where it is not counted."""
    file = Path("/proc/net/dev")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((int(x.split()[1]) for x in lines if x.strip().startswith("lo:")), 0)


def run_processes(count: int, together: bool, steps: int) -> list[Record]:
    """Run processes side by side; those that work together average their gradients."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script, world = str(Path(__file__).resolve()), count if together else 1
    started = [
        subprocess.Popen(
            [sys.executable, script, "steps", str(rank), str(world), str(port), str(steps)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    return [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]


def two_processes(rounds: int, steps: int) -> Record:
    """Time steps of one process, of two apart and of two together, in turns."""
    found: dict[str, list[float]] = {"alone": [], "apart": [], "together": [], "all_reduce": []}
    sent = []
    for _ in range(rounds):
        for name, count in (("alone", 1), ("apart", 2), ("together", 2)):
            records = run_processes(count, name == "together", steps)
            # a step together ends with the slower one
            found[name].append(max(statistics.median(r["step_s"]) for r in records))
            if name == "together":
                found["all_reduce"] += [statistics.median(records[0]["all_reduce_s"])]
                sent.append(records[0]["loopback_bytes_per_step"])
    return {
        "weights": records[0]["weights"],
        "tokens_per_step": 2 * SENTENCES * LENGTH,
        "seconds": found,
        "loopback_bytes_per_step": min(sent),
    }


def checkpoint(weights: int) -> Record:
    """Time a checkpoint: the weights and both moments of Adam, written through to the disk."""
    import torch

    from regard.training.weights_file import write_weights

    tensors = {name: torch.rand(weights) for name in ("weights", "first", "second")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        seconds = [timed(lambda: write_weights(path, tensors)) for _ in range(3)]
        size = path.stat().st_size
    return {"bytes": size, "seconds": seconds, "bytes_per_s": size / statistics.median(seconds)}


def gpu_weights() -> int:
    """Return the weights of the model that was timed on a GPU."""
    import torch

    from regard.models import PRESETS

    vocab = json.loads((RESULTS / "training-h200.json").read_text())["vocab"]
    with torch.device("meta"):
        model = PRESETS[PRESET](vocab, vocab, "small")
    return sum(weight.numel() for weight in model.parameters())


def measure(args: argparse.Namespace) -> None:
    import torch

    result: Record = {
        "command": command(["python", *sys.argv]),
        "machine": machine() | {"torch": torch.__version__},
        **source(),
        "preset": PRESET,
        "gpu_weights": gpu_weights(),
        "load_average": os.getloadavg()[0],
        "two_processes": two_processes(args.rounds, args.steps),
    }
    result["checkpoint"] = checkpoint(result["gpu_weights"])
    write(args.out, result)


# --- tables ---------------------------------------------------------------------------------------


def table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _mb(count: float) -> str:
    return f"{count / 1e6:,.1f}"


def constants() -> Record:
    """Return the constants of the model, from all results."""
    found: Record = json.loads(RESULT.read_text())
    trained = json.loads((RESULTS / "training-h200.json").read_text())
    encoded = json.loads((RESULTS / "shards.json").read_text())
    speed = {
        record["backend"]: record
        for record in trained["speed"]
        if record["preset"] == found["preset"] and "error" not in record
    }
    return {
        "here": found,
        "gpu": trained["machine"]["gpu"],
        "weights": found["gpu_weights"],
        "eager": speed["auto"],
        "graphs": speed["graphs"],
        "encoding": encoded["encoding"]["pairs_per_second"] / encoded["machine"]["cores"],
        "encoded_pairs": encoded["pairs"],
        "checkpoint": found["checkpoint"]["bytes_per_s"],
    }


def constants_table(c: Record) -> str:
    rows = [
        ["tokens/s of a GPU, steps from CUDA graphs", f"{c['graphs']['tokens_per_s']:,.0f}"],
        ["tokens/s of a GPU, eager steps", f"{c['eager']['tokens_per_s']:,.0f}"],
        ["B: tokens of a step and GPU", f"{c['eager']['tokens_per_step']:,.0f}"],
        ["t: seconds of an eager step", f"{c['eager']['step_ms'] / 1e3:.4f}"],
        ["P: weights", f"{c['weights']:,}"],
        [
            f"E: pairs encoded per second and core ({c['encoded_pairs']:,} pairs in shards)",
            f"{c['encoding']:,.0f}",
        ],
        ["D: bytes of a checkpoint written per second, in MB", f"{c['checkpoint'] / 1e6:,.0f}"],
    ]
    return table([f"constant ({c['gpu']}; the last two: CPU)", "measured"], rows)


def assumptions_table() -> str:
    rows = [
        [f"W: bandwidth of a node, {name}, in GB/s", f"{w / 1e9:g}"] for name, w in NETWORKS.items()
    ]
    rows += [
        ["W between the GPUs of a node, in GB/s", f"{NVLINK / 1e9:g}"],
        ["a: latency of a hop, in microseconds", f"{HOP_S * 1e6:g}"],
        ["GPUs of a node", str(NODE)],
        ["tokens of a pair, both sides", str(PAIR_TOKENS)],
        ["minutes between two checkpoints", f"{CHECKPOINT_EVERY_S / 60:g}"],
    ]
    return table(["assumption", "value"], rows)


def predicted(two: Record) -> Record:
    """Return what the model says of two processes here, beside what was measured."""
    alone, apart, together, reduce = (
        statistics.median(two["seconds"][name])
        for name in ("alone", "apart", "together", "all_reduce")
    )
    expected = apart + reduce
    return {
        "alone": alone,
        "apart": apart,
        "all_reduce": reduce,
        "expected": expected,
        "together": together,
        "expected_ratio": 2 * alone / expected,
        "ratio": 2 * alone / together,
        "expected_bytes": 2 * ring_bytes(two["weights"], 2),
        "bytes": two["loopback_bytes_per_step"],
    }


def two_table(c: Record) -> str:
    p = predicted(c["here"]["two_processes"])
    rows = [
        ["seconds of a step, one process", "", f"{p['alone']:.3f}"],
        ["the same, two that do not talk", "", f"{p['apart']:.3f}"],
        ["seconds to sum all gradients", "", f"{p['all_reduce']:.3f}"],
        ["seconds of a step, two together", f"{p['expected']:.3f}", f"{p['together']:.3f}"],
        ["tokens/s of two against one", f"{p['expected_ratio']:.2f}", f"{p['ratio']:.2f}"],
        ["MB through the loopback device per step", _mb(p["expected_bytes"]), _mb(p["bytes"])],
    ]
    return table(["two processes here (gloo)", "model", "measured"], rows)


def scenario(c: Record, gpus: int, bandwidth: float) -> Record:
    """Return what the model says of a number of GPUs."""
    compute, tokens = c["eager"]["step_ms"] / 1e3, c["eager"]["tokens_per_step"]
    sent = ring_bytes(c["weights"], gpus)
    step = step_seconds(compute, sent, bandwidth if gpus > NODE else NVLINK, gpus)
    rate = gpus * tokens / step
    return {
        "sent": sent,
        "step": step,
        "efficiency": compute / step,
        "rate": rate,
        "epoch_h": PAIRS * PAIR_TOKENS / rate / 3600,
        "pairs_per_s": rate / PAIR_TOKENS,
        "cores": rate / PAIR_TOKENS / c["encoding"],
    }


def gpus_table(c: Record) -> str:
    rows = []
    for gpus in GPUS:
        for name, bandwidth in NETWORKS.items():
            s = scenario(c, gpus, bandwidth)
            if gpus <= NODE and rows:
                continue
            cells = [str(gpus), "one node" if gpus <= NODE else name, f"{s['step'] * 1e3:.1f}"]
            cells += [f"{s['efficiency']:.0%}", f"{s['rate'] / 1e6:,.1f}"]
            cells += [f"{s['rate'] / c['graphs']['tokens_per_s']:,.1f}", f"{s['epoch_h']:,.2f}"]
            rows.append([*cells, f"{s['cores']:,.0f}"])
    titles = ["GPUs", "network", "ms a step", "efficiency", "million tokens/s"]
    titles += ["against one GPU with graphs", "hours for 10^9 pairs", "cores to encode as fast"]
    return table(titles, rows)


def bytes_table(c: Record) -> str:
    rows = []
    for gpus in GPUS:
        ddp, fsdp = (ring_bytes(c["weights"], gpus, sharded) for sharded in (False, True))
        memory = 16 * c["weights"]
        limit = needed_bandwidth(c, gpus)
        rows.append([str(gpus), *map(_mb, (ddp, fsdp)), limit, *map(_mb, (memory, memory / gpus))])
    titles = ["GPUs", "ddp: MB sent per step and GPU", "fsdp", "GB/s for 90% efficiency (ddp)"]
    titles += ["MB of weights, gradients and Adam per GPU (ddp)", "fsdp"]
    return table(titles, rows)


def needed_bandwidth(c: Record, gpus: int) -> str:
    """Return the bandwidth at which nine tenths of a step are computation; none may suffice."""
    room = c["eager"]["step_ms"] / 1e3 / 9 - 2 * (gpus - 1) * HOP_S
    return f"{ring_bytes(c['weights'], gpus) / room / 1e9:.1f}" if room > 0 else "none: latency"


def other_table(c: Record) -> str:
    size = CHECKPOINT_BYTES * c["weights"]
    seconds = size / c["checkpoint"]
    cores = c["here"]["machine"]["cores"]
    hours = PAIRS / c["encoding"] / 3600
    rows = [
        ["MB of a checkpoint", f"{size / 1e6:.0f}"],
        ["seconds to write it", f"{seconds:.2f}"],
        ["share of the time", f"{seconds / CHECKPOINT_EVERY_S:.2%}"],
        [f"hours to encode 10^9 pairs on {cores} cores", f"{hours / cores:,.1f}"],
        ["the same on 512 cores", f"{hours / 512:,.2f}"],
    ]
    rates = ray_rates()
    if rates is not None:
        rows += [
            [
                "answers/s of a worker of `predict --ray` (one core, the bundled model)",
                f"{rates[0]:,.0f}",
            ],
            [
                "two workers against one, the best of each",
                f"{rates[1]:.2f}",
            ],
            [
                "hours to answer 10^9 such sources with 512 workers",
                f"{PAIRS / rates[0] / 512 / 3600:,.2f}",
            ],
        ]
    return table(["", "value"], rows)


def ray_table() -> str:
    """Return the results of jobs on a cluster, as far as they are measured."""
    file = RESULTS / "ray-predict.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    rows = []
    if job := found.get("killed"):
        rows += [
            ["sources", f"{job['sources']:,}"],
            ["workers killed (SIGKILL)", str(job["kills"])],
            ["ids answered exactly once", f"{job['ids_answered_once']:,}"],
            ["answers that differ from `regard predict`", f"{job['different_answers']:,}"],
            [f"rows/s of {job['workers']} workers that are killed", _rate(job)],
        ]
    if rates := found.get("throughput"):
        for count, some in rates["rows_per_second"].items():
            name = f"rows/s, workers: {count}; best and median of {len(some)} turns"
            rows += [[name, f"{max(some):,.0f}, {statistics.median(some):,.0f}"]]
        rows += [["load average of other jobs before", f"{rates['load_average_before']:.1f}"]]
    if bad := found.get("poisoned"):
        name = "rows with an error, of a job with one source that kills each worker"
        rows += [[name, f"{bad['rows_with_errors']} of {bad['rows']}"]]
        rows += [["workers that it killed until it was left out", str(bad["restarts"])]]
    if (full := found.get("full_disk")) and "skipped" not in full:
        rows += [
            ["shards finished on a disk that became full", str(full["shards_kept"])],
            ["of these kept when the job went on", str(full["shards_of_before"])],
        ]
    if silent := found.get("no_cluster"):
        name = "seconds until an address without a cluster is reported, imports included"
        rows += [[name, f"{silent['seconds']:.0f}"]]
    missing = [part for part in RAY_PARTS if part not in found]
    lines = [table(["two nodes on one machine", "value"], rows)] if rows else []
    if missing:
        lines += [f"Not measured yet: {', '.join(missing)}."]
    return "\n\n".join(lines)


def shards_table() -> str:
    """Return the results of encoding and reading shards."""
    found: Record = json.loads((RESULTS / "shards.json").read_text())
    encoded, reading = found["encoding"], found["reading"]
    runs = encoded["until_killed"], encoded["resumed"]
    peak, largest = (
        max(run[f"peak_rss_mb_of_{which}"] for run in runs) for which in ("all", "largest")
    )
    rows = [
        ["pairs", f"{found['pairs']:,}"],
        ["shards", f"{found['shards']:,}"],
        ["pairs encoded per second, tokenisers included", f"{encoded['pairs_per_second']:,.0f}"],
        ["MiB of all encoding processes together at most", f"{peak:,.0f}"],
        [f"is that within {ENCODING_MB:,} MiB", "yes" if peak <= ENCODING_MB else "no"],
        ["MiB of the largest process", f"{largest:,.0f}"],
        ["shards encoded before the kill", f"{encoded['shards_when_killed']:,}"],
        ["of these left as they were", f"{encoded['shards_kept_as_they_were']:,}"],
        [
            "MiB of a process that reads and plans an epoch",
            f"{reading['reader']['peak_rss_mb']:,.0f}",
        ],
        ["tokens/s read in shuffled order", f"{reading['reader']['tokens_per_second']:,.0f}"],
    ]
    for preset, trained in reading["trainers"].items():
        rows.append([f"tokens/s that {preset} trains on", f"{trained['tokens_per_second']:,.0f}"])
    return table(["two cores", "value"], rows)


def _rate(job: Record) -> str:
    return f"{job['rows_per_second']:,.0f}"


def ray_rates() -> tuple[float, float] | None:
    """Return the rows per second of one worker, and how many times as fast two are."""
    file = RESULTS / "ray-predict.json"
    if not file.exists():
        return None
    found = json.loads(file.read_text()).get("throughput")
    if found is None:
        return None
    return max(found["rows_per_second"]["1"]), found["two_over_one"]


def bottleneck_text(c: Record) -> str:
    """Return sentences on where the time goes; every number comes from the model."""
    fast, slow = NETWORKS.values()
    eager, graphs = c["eager"]["tokens_per_s"], c["graphs"]["tokens_per_s"]
    lines = [
        f"- **One GPU to several**: only one process replays steps from CUDA graphs, so a GPU of "
        f"several computes {eager / graphs:.0%} of what it does alone, and "
        f"{graphs / eager:.1f} GPUs are needed to break even for this small model. Batches of more "
        f"tokens are the way out: an eager step takes almost as long for few tokens as for many.",
    ]
    for gpus in GPUS[1:]:
        one, other = (scenario(c, gpus, bandwidth) for bandwidth in (fast, slow))
        lines.append(
            f"- **{gpus} GPUs**: the network takes {1 - one['efficiency']:.0%} of a step at "
            f"{fast / 1e9:g} GB/s and {1 - other['efficiency']:.0%} at {slow / 1e9:g} GB/s; "
            f"latency alone, {2 * (gpus - 1) * HOP_S * 1e3:.1f} ms, is "
            f"{2 * (gpus - 1) * HOP_S / one['step']:.0%} of it."
        )
    most = scenario(c, GPUS[-1], fast)
    lines.append(
        f"- **Data**: {GPUS[-1]} GPUs read {most['pairs_per_s']:,.0f} pairs/s, which "
        f"{most['cores']:,.0f} cores encode. Encode once (`docs/shards.md`), not while training."
    )
    return "\n".join(lines)


def page_tables() -> dict[str, dict[str, str]]:
    """Return the tables of each page by their names."""
    c = constants()
    scale = {
        "constants": constants_table(c),
        "assumptions": assumptions_table(),
        "two": two_table(c),
        "gpus": gpus_table(c),
        "bytes": bytes_table(c),
        "other": other_table(c),
        "bottleneck": bottleneck_text(c),
        "ray": ray_table(),
    }
    return {"scale.md": scale, "shards.md": {"shards": shards_table()}}


def render(name: str, tables: dict[str, str]) -> str:
    """Return a page with its tables written anew."""
    page = (DOCS / name).read_text(encoding="utf-8")
    for part, text in tables.items():
        pattern = rf"(<!-- {part} -->\n).*?(\n<!-- end -->)"
        page, count = re.subn(pattern, lambda m, t=text: m[1] + t + m[2], page, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{name} must have one place for {part!r}, but it has {count}.")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring = verbs.add_parser("measure")
    measuring.add_argument("--rounds", type=int, default=5)
    measuring.add_argument("--steps", type=int, default=12)
    measuring.add_argument("--out", type=Path, default=RESULT)
    rendering = verbs.add_parser("render")
    rendering.add_argument("--check", action="store_true")
    steps = verbs.add_parser("steps")
    for name in ("rank", "world", "port", "steps"):
        steps.add_argument(name, type=int)
    args = parser.parse_args()
    if args.verb == "measure":
        measure(args)
    elif args.verb == "steps":
        print(json.dumps(train_steps(args.rank, args.world, args.port, args.steps)))
    else:
        for name, tables in page_tables().items():
            page = render(name, tables)
            if args.check and page != (DOCS / name).read_text(encoding="utf-8"):
                raise SystemExit(f"{name} is out of date: run benchmarks/scale_model.py render.")
            (DOCS / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
