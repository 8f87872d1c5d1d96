"""A step of training with sharded weights, beside the same step of one process.

    torchrun --standalone --nproc-per-node=2 tests/training/sharded_step.py [PRESET ...]

Each process takes every other row of a batch and holds a part of the weights. A line is printed
for each preset: how far the gathered gradients are from those of one process, as a share of the
largest gradient, with recomputed activations and without, and the share of the weights that the
first process holds.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from regard.models import PRESETS
from regard.training.config import preset_options
from regard.training.losses import Objective
from regard.training.sharding import own_part, shard, units, whole

VOCAB, ROWS = 23, 10
SETTINGS = {"dropout": 0.0, "layers": 2}


def batch() -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    src, tgt = (torch.randint(4, VOCAB, (ROWS, n), generator=draw) for n in (11, 8))
    lengths = torch.randint(8, 12, (ROWS,), generator=draw)
    return src, lengths, tgt[:, :-1], tgt[:, 1:]


def objective(preset: str, tied: bool) -> nn.Module:
    torch.manual_seed(7)
    known = preset_options(preset)
    settings = {name: value for name, value in SETTINGS.items() if name in known}
    if tied and "tied" in known:
        options = known["tied"].annotation
        settings["tied"] = "all" if "all" in str(options) else "output"
    return Objective(PRESETS[preset](VOCAB, VOCAB, "tiny", **settings))


def distance(preset: str, tied: bool) -> str:
    world, rank = dist.get_world_size(), dist.get_rank()
    alone, together = objective(preset, tied), batch()
    alone(*together).backward()
    mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    made = objective(preset, tied)
    count = len(units(made))
    shared = shard(made, mesh)
    for _ in range(2):
        shared.zero_grad()
        (shared(*(part[rank::world] for part in together)) * world).backward()
    apart, highest = 0.0, 0.0
    for (name, a), b in zip(alone.named_parameters(), shared.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            apart = max(apart, float((a.grad - whole(b.grad)).abs().max()))
            highest = max(highest, float(a.grad.abs().max()))
    mine = sum(own_part(p).numel() for p in shared.parameters())
    share = mine / sum(p.numel() for p in alone.parameters())
    return f"{apart / highest:.2e} {share:.4f} {count}"


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for preset in sys.argv[1:] or PRESETS:
        for tied in (False, True):
            try:
                found = distance(preset, tied)
            except Exception as error:
                if len(sys.argv) > 1:
                    raise
                found = f"{type(error).__name__} {str(error)[:150]!r}"
            if dist.get_rank() == 0:
                print(preset, tied, found, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
