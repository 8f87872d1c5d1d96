"""Take training steps of a Transformer with more than a billion weights, and print what they cost.

    python benchmarks/billion.py --json benchmarks/results/billion-h200.json
    torchrun --nproc-per-node=8 benchmarks/billion.py --strategy fsdp

A step is what `regard train` does: forward and backward in bf16 over float32 weights, clipping by
the norm, AdamW. Tokens are random. `--no-recompute` keeps all activations. Under torchrun each
process has a batch of its own; the numbers of the first process are printed.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "src"))

import provenance  # noqa: E402
from regard.models import PRESETS  # noqa: E402
from regard.training.losses import Objective  # noqa: E402
from regard.training.optimization import parameter_groups, recompute_layers  # noqa: E402
from regard.training.sharding import shard  # noqa: E402

#: steps that are not timed: the first ones compile kernels and allocate
FIRST = 2


def random_batch(args: argparse.Namespace, device: torch.device) -> tuple[Tensor, ...]:
    """Return source, lengths, and both sides of a target."""
    shape = (args.rows, args.length + 1)
    tgt = torch.randint(4, args.vocab, shape, device=device)
    src = tgt[:, 1:] if args.preset == "transformer" else tgt[:, :1]
    lengths = torch.full((args.rows,), src.shape[1], device=device)
    return src, lengths, tgt[:, :-1], tgt[:, 1:]


def peak_bytes(device: torch.device) -> int | None:
    """Return the most memory that a GPU has had in use; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def train(args: argparse.Namespace, device: torch.device, world: int) -> dict[str, Any]:
    """Take the steps, and return memory, speed and losses."""
    torch.manual_seed(1)
    sizes = {"dim": args.dim, "layers": args.layers, "heads": args.heads}
    sizes |= {"feed_forward": args.feed_forward, "dropout": args.dropout}
    with device:
        model = PRESETS[args.preset](args.vocab, args.vocab, "base", **sizes)
    weights = sum(weight.numel() for weight in model.parameters())
    if args.recompute:
        recompute_layers(model, args.preset)
    objective = Objective(model, smoothing=0.1)
    if world > 1:
        from torch.distributed.device_mesh import init_device_mesh

        names = ("data_parallel", "tensor_parallel")
        shard(objective, init_device_mesh(device.type, (world, 1), mesh_dim_names=names))
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01, [], 1.0), lr=1e-4, fused=True)
    losses, began = [], 0.0
    for step in range(FIRST + args.steps):
        if step == FIRST:
            wait(device)
            began = time.perf_counter()
        batch = random_batch(args, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
            loss = objective(*batch) / batch[3].numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    wait(device)
    seconds = (time.perf_counter() - began) / args.steps
    peak = peak_bytes(device)
    return {
        "weights": weights,
        "tokens_per_step": world * args.rows * args.length,
        "seconds_per_step": round(seconds, 4),
        "tokens_per_second": round(world * args.rows * args.length / seconds, 1),
        "peak_gib": None if peak is None else round(peak / 2**30, 2),
        "losses": [round(float(loss), 4) for loss in losses],
    }


def wait(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--preset", choices=["lm-transformer", "transformer"], default="lm-transformer"
    )
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--feed-forward", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--precision", choices=["bf16", "32"], default="bf16")
    parser.add_argument("--recompute", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--strategy", choices=["alone", "fsdp"], default="alone")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write to FILE too")
    args = parser.parse_args()
    device, world, rank = torch.device(args.device), 1, 0
    if args.strategy == "fsdp":
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group()
        world, rank = dist.get_world_size(), dist.get_rank()
    found = train(args, device, world)
    if rank == 0:
        chip = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        settings = {k: v for k, v in vars(args).items() if k != "json"}
        report = {
            "command": provenance.command(["python", *sys.argv]),
            "machine": provenance.machine() | {"torch": torch.__version__, "device": chip},
            "source": provenance.source(),
            "settings": settings,
            "processes": world,
            **found,
        }
        print(json.dumps(report, indent=2))
        provenance.write(args.json, report)
    if args.strategy == "fsdp":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
