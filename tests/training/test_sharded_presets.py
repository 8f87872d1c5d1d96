"""Gradients of sharded models are those of one process, for every preset."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from regard.models import PRESETS, STORY_PRESETS
from regard.training.config import preset_options
from regard.training.losses import Objective
from regard.training.sharding import GatheredModel, own_part, shard, whole
from training.tools import run_processes

pytestmark = pytest.mark.slow

VOCAB, ROWS, PROCESSES = 23, 10, 2
#: one of each family; the others are `long`
QUICK = ("pointer", "transformer", "conv", "lm-transformer", "classifier-rnn")


def batch(preset: str) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    src, tgt = (torch.randint(4, VOCAB, (ROWS, n), generator=draw) for n in (11, 8))
    lengths = torch.randint(8, 12, (ROWS,), generator=draw)
    if preset in STORY_PRESETS:
        src = src[:, None].repeat(1, 3, 1)
        lengths = torch.full((ROWS,), 3)
    return src, lengths, tgt[:, :-1], tgt[:, 1:]


def objective(preset: str, tied: bool) -> nn.Module:
    torch.manual_seed(7)
    known, settings = preset_options(preset), {"dropout": 0.0, "layers": 2, "noise": 0.0}
    if tied:
        settings["tied"] = "all" if "all" in str(known.get("tied")) else "output"
    given = {name: value for name, value in settings.items() if name in known}
    return Objective(PRESETS[preset](VOCAB, VOCAB, "tiny", **given))


def compare(presets: list[str]) -> None:
    """Compare the gathered gradients of this process and others with those of the whole batch."""
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    for preset, tied in [(preset, tied) for preset in presets for tied in (False, True)]:
        alone, sharded = objective(preset, tied), objective(preset, tied)
        together = batch(preset)
        alone(*together).backward()
        gathered = GatheredModel(sharded.model, is_first=rank == 0)
        shard(sharded, mesh)
        for _ in range(2):  # the first call finds out about the order of the units
            sharded.zero_grad()
            (sharded(*(part[rank::world] for part in together)) * world).backward()
        weights = dict(alone.named_parameters())
        highest = max(w.grad.abs().max() for w in weights.values() if w.grad is not None)
        for name, weight in sharded.named_parameters():
            assert (weight.grad is None) == (weights[name].grad is None), (preset, tied, name)
            if weight.grad is not None:
                apart = (whole(weight.grad) - weights[name].grad).abs().max()
                assert apart < 1e-5 * highest, (preset, tied, name)
        held = sum(own_part(weight).numel() for weight in sharded.parameters())
        total = sum(weight.numel() for weight in weights.values())
        assert held < 0.52 * total, (preset, tied)
        with gathered.filled(sharded.model, {}):
            if rank == 0:
                expected = alone.model.state_dict()
                found = gathered.module.state_dict()
                assert expected.keys() == found.keys()
                assert all(torch.equal(expected[name], found[name]) for name in expected)
        assert all(weight.numel() == 0 for weight in gathered.module.parameters())
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "presets",
    [
        pytest.param(list(QUICK), id="quick"),
        pytest.param(
            [name for name in PRESETS if name not in QUICK], id="others", marks=pytest.mark.long
        ),
    ],
)
def test_shards_have_the_gradients_of_one_process(presets):
    assert run_processes(PROCESSES, partial(compare, presets)) == [0] * PROCESSES
