"""Forward and backward pass of a step of training give work to a GPU without waiting for it."""

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from data.tools import make_corpus, make_pairs
from regard.data import BatchShape, collate
from regard.models import PRESETS
from regard.training.losses import Objective
from regard.training.optimization import EAGER_BATCHES, CudaGraphGradients

pytestmark = [
    pytest.mark.gpu,
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
@pytest.mark.parametrize("preset", [*PRESETS_WITH_KERNELS, "transformer", "pointer", "memory"])
@pytest.mark.usefixtures("quiet_again")
def test_no_step_waits_for_the_device(preset, rdrop, tmp_path):
    corpus = make_corpus(tmp_path / "c.arrow", make_pairs(60))
    check_no_step_waits(on_gpu(preset, rdrop), corpus)


def check_no_step_waits(objective, corpus):
    for mode in ("default", "error"):  # the first compiles kernels
        torch.cuda.set_sync_debug_mode(mode)
        batch = collate(corpus, np.arange(60)).to("cuda", non_blocking=True)
        sides = (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
        objective(*sides, batch.tgt_places).backward()
    torch.cuda.set_sync_debug_mode("default")
    assert all(torch.isfinite(p.grad).all() for p in objective.parameters())


SHAPE = BatchShape(40, 64, 64)


def recorded(preset, precision, rdrop=0.0, **options):
    torch.manual_seed(3)
    fabric = Fabric(accelerator="cuda", devices=1, precision=precision)
    model = PRESETS[preset](VOCAB, VOCAB, "tiny", **options)
    return CudaGraphGradients(fabric, fabric.setup(Objective(model, 0.1, rdrop)))


def gradients_of(steps, batch):
    loss = steps(batch, 0.5)
    return [loss.double(), *(g.double().clone() for g in steps.gradients)]


def check_replays(slow, fast, batches, precision):
    """Both give the same, though one of them replays."""
    slow.records = False
    for _ in range(EAGER_BATCHES):
        fast(batches[0], 1.0)
    for batch in batches:
        for one, other in zip(gradients_of(slow, batch), gradients_of(fast, batch), strict=True):
            # atomic sums differ in their order
            scale = one.abs().max().clamp(min=1e-3)
            assert (one - other).abs().max() <= (1e-5 if precision == "32-true" else 2e-2) * scale
    assert fast.records
    assert list(fast.recordings) == [SHAPE]
    assert not slow.recordings


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize(
    "preset",
    [
        *PRESETS_WITH_KERNELS,
        "transformer",
        "pointer",
        "monotonic",
        "memory",
        "luong",
        "seq2seq",
        "conv",
    ],
)
def test_replayed_steps_are_those_that_are_taken_one_by_one(preset, precision, tmp_path):
    corpus = make_corpus(tmp_path / "c.arrow", make_pairs(90))
    batches = [collate(corpus, np.arange(i, i + 30), SHAPE) for i in (0, 30, 60)]
    slow, fast = (recorded(preset, precision, dropout=0.0) for _ in range(2))
    check_replays(slow, fast, batches, precision)


@pytest.mark.parametrize(
    ("preset", "rdrop"), [("transformer", 0.0), ("transformer", 1.0), ("bahdanau", 0.0)]
)
def test_steps_with_a_guide_are_replayed(preset, rdrop, tmp_path):
    corpus = make_corpus(tmp_path / "c.arrow", make_pairs(90))
    batches = [collate(corpus, np.arange(i, i + 30), SHAPE) for i in (0, 30, 60)]
    rng = torch.Generator().manual_seed(5)
    shape = SHAPE.rows, SHAPE.tgt_len, SHAPE.src_len
    batches = [batch._replace(links=torch.rand(shape, generator=rng)) for batch in batches]
    slow, fast = (recorded(preset, "32-true", rdrop, dropout=0.0) for _ in range(2))
    slow.model.guide_weight = fast.model.guide_weight = 0.5
    check_replays(slow, fast, batches, "32-true")


@pytest.mark.parametrize("preset", ["transformer", "bahdanau"])
def test_a_replay_drops_what_the_step_itself_would_have_dropped(preset, tmp_path):
    # so that a run which goes on, and records anew, is the run that was never stopped
    corpus = make_corpus(tmp_path / "c.arrow", make_pairs(30))
    batch, found = collate(corpus, np.arange(30), SHAPE), []
    for records in (False, True):
        steps = recorded(preset, "32-true", dropout=0.5)
        steps.records = records
        torch.manual_seed(7)
        found.append([float(steps(batch, 1.0)) for _ in range(EAGER_BATCHES + 4)])
        assert bool(steps.recordings) == records
    assert found[1] == pytest.approx(found[0], rel=1e-6)
