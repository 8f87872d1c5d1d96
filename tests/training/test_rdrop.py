"""R-Drop against the plain formula of the paper."""

import pytest
import torch
import torch.nn.functional as F

from models.cases import BATCH, build, pairs
from regard.training import losses as loss_module
from regard.training.losses import Objective, rdrop_loss

TOKENS, VOCAB = 29, 37
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def made(dtype):
    rng = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(2 * TOKENS, VOCAB, generator=rng, dtype=torch.float64)).to(dtype)
    return logits, torch.randint(0, VOCAB, (TOKENS,), generator=rng)


def by_the_paper(logits, target, smoothing, alpha, factor, dtype=torch.float64):
    """Half of L_NLL + alpha L_KL, equations 1 and 2, with torch's own parts."""
    leaf = logits.clone().requires_grad_()
    first, second = leaf.to(dtype).chunk(2)
    options = {"reduction": "sum", "label_smoothing": smoothing}
    likelihood = F.cross_entropy(first, target, **options)
    likelihood = likelihood + F.cross_entropy(second, target, **options)
    p, q = first.log_softmax(dim=1), second.log_softmax(dim=1)
    there = F.kl_div(q, p, reduction="sum", log_target=True)  # KL(p || q)
    back = F.kl_div(p, q, reduction="sum", log_target=True)
    loss = (likelihood + alpha * (there + back) / 2) / 2
    (loss * factor).backward()
    return loss.detach().double(), leaf.grad.double()


@pytest.fixture(params=[1, 7, TOKENS])
def few_rows(request, monkeypatch):
    monkeypatch.setitem(loss_module.CHUNK, "cpu", 8 * request.param * VOCAB)


@pytest.mark.sample(16)
@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("alpha", "factor"), [(5.0, 1.0), (1.0, -0.13), (0.0, 2.0)])
def test_values_and_gradients(dtype, smoothing, alpha, factor):
    logits, target = made(dtype)
    right, right_grad = by_the_paper(logits.double(), target, smoothing, alpha, factor)
    same = dtype if dtype == torch.float64 else torch.float32
    theirs, their_grad = by_the_paper(logits, target, smoothing, alpha, factor, same)
    leaf = logits.clone().requires_grad_()
    found = rdrop_loss(leaf * 1, target, smoothing, alpha)
    (found * factor).backward()
    assert abs(found.double() - right) <= 2 * abs(theirs - right) + 1e-6 * right
    allowed = 2 * (their_grad - right_grad).abs().max() + 1e-7
    assert (leaf.grad.double() - right_grad).abs().max() <= allowed


@pytest.fixture
def batch():
    src, lengths, tgt = pairs()
    out = torch.roll(tgt, -1, dims=1)
    out[1, 3:] = 0
    return src, lengths, tgt, out


@pytest.mark.parametrize("variant", ["bahdanau", "transformer"])
def test_every_row_is_dropped_in_two_ways(variant, batch, monkeypatch):
    seen = []

    def spy(logits, *rest):
        seen.append(logits.detach().clone())
        return rdrop_loss(logits, *rest)

    monkeypatch.setattr("regard.training.losses.rdrop_loss", spy)
    model = build(variant, dropout=0.5)
    found = Objective(model, 0.1, rdrop=5.0)(*batch)
    found.backward()
    first, second = seen[0].chunk(2)
    assert len(first) == int((batch[3] != 0).sum()) < BATCH * batch[3].shape[1]
    assert not (first == second).all(dim=1).any()
    expected, _ = by_the_paper(seen[0].double(), batch[3][batch[3] != 0], 0.1, 5.0, 1.0)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
