"""Forward and backward pass of a step of training give work to a GPU without waiting for it."""

import numpy as np
import pytest
import torch

from data.tools import make_corpus, make_pairs
from regard.data import collate
from regard.models import PRESETS
from regard.training.objective import Objective

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
    # the thread of the first backward pass finds no context, and makes one
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]

VOCAB = 300
PRESETS_WITH_KERNELS = ("bahdanau", "gnmt", "self-attentive")


@pytest.fixture
def quiet_again():
    yield
    torch.cuda.set_sync_debug_mode("default")


def on_gpu(preset, rdrop=0.0):
    torch.manual_seed(3)
    return Objective(PRESETS[preset](VOCAB, VOCAB, "tiny"), 0.1, rdrop=rdrop).cuda()


@pytest.mark.parametrize("rdrop", [0.0, 1.0])
@pytest.mark.parametrize("preset", [*PRESETS_WITH_KERNELS, "transformer", "pointer"])
@pytest.mark.usefixtures("quiet_again")
def test_no_step_waits_for_the_device(preset, rdrop, tmp_path):
    corpus = make_corpus(tmp_path / "c.arrow", make_pairs(60))
    objective, rows = on_gpu(preset, rdrop), np.arange(60)
    for mode in ("default", "error"):  # the first compiles kernels
        torch.cuda.set_sync_debug_mode(mode)
        batch = collate(corpus, rows).to("cuda", non_blocking=True)
        sides = (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
        objective(*sides, batch.tgt_places).backward()
    torch.cuda.set_sync_debug_mode("default")
    assert all(torch.isfinite(p.grad).all() for p in objective.parameters())


@pytest.mark.usefixtures("quiet_again")
def test_a_step_without_places_does(tmp_path):
    corpus = make_corpus(tmp_path / "c.arrow", make_pairs(60))
    batch, objective = collate(corpus, np.arange(60)).to("cuda"), on_gpu("transformer")
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchroniz"):
        objective(batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
