"""A step of training that processes share, beside the same step of one process.

    torchrun --standalone --nproc-per-node=2 tests/ops/shared_step.py BACKEND DEVICE

Each process takes every other row of a batch, with the operators by this backend. The gradients
that all of them hold then are put beside those of the whole batch by the definition. A line is
printed for each preset: how far they are apart, as a share of the largest gradient.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from regard.models import PRESETS
from regard.ops import use_backend
from regard.training.losses import Objective

VOCAB, ROWS = 23, 10
SIZES = {"embed": 16, "hidden": 32, "layers": 1, "dropout": 0.0}


def batch(device: str) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    src, tgt = (torch.randint(4, VOCAB, (ROWS, n), generator=draw) for n in (11, 8))
    lengths = torch.randint(1, 12, (ROWS,), generator=draw)
    return tuple(part.to(device) for part in (src, lengths, tgt[:, :-1], tgt[:, 1:]))


def gradients(objective: torch.nn.Module) -> list[Tensor]:
    return [p.grad for p in objective.parameters() if p.grad is not None]


def distance(preset: str, backend: str, device: str) -> float:
    world, rank = dist.get_world_size(), dist.get_rank()

    def objective() -> Objective:
        torch.manual_seed(7)
        return Objective(PRESETS[preset](VOCAB, VOCAB, "tiny", **SIZES)).to(device)

    alone, whole = objective(), batch(device)
    with use_backend("reference"):
        alone(*whole).backward()
    shared = DistributedDataParallel(objective())
    with use_backend(backend):
        # gradients are averaged over processes, so that each counts its own sum `world` times
        (shared(*(part[rank::world] for part in whole)) * world).backward()
    pairs = list(zip(gradients(alone), gradients(shared), strict=True))
    highest = max(float(a.abs().max()) for a, _ in pairs)
    return max(float((a - b).abs().max()) for a, b in pairs) / highest


def main() -> None:
    backend, device = sys.argv[1:]
    torch.backends.cudnn.allow_tf32 = False
    # two processes on one GPU: nccl wants one for each
    dist.init_process_group("gloo")
    for preset in ("bahdanau", "gnmt", "self-attentive"):
        found = distance(preset, backend, device)
        if dist.get_rank() == int(os.environ["WORLD_SIZE"]) - 1:
            print(preset, found, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
