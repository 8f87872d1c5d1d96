import pytest
import torch
import torch.nn.functional as F

from regard.training import losses as loss_module
from regard.training.losses import cross_entropy

TOKENS, VOCAB = 53, 131
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def made(dtype, seed=0):
    rng = torch.Generator().manual_seed(seed)
    logits = (4 * torch.randn(TOKENS, VOCAB, generator=rng, dtype=torch.float64)).to(dtype)
    return logits, torch.randint(0, VOCAB, (TOKENS,), generator=rng)


def by_torch(logits, target, smoothing, factor):
    x = logits.clone().requires_grad_()
    wide = x if x.dtype == torch.float64 else x.float()
    found = F.cross_entropy(wide, target, reduction="sum", label_smoothing=smoothing)
    (found * factor).backward()
    return found.detach().double(), x.grad.double()


@pytest.fixture(params=[1, 7, TOKENS])
def few_rows(request, monkeypatch):
    monkeypatch.setitem(loss_module.CHUNK, "cpu", request.param * VOCAB)


@pytest.mark.sample(16)
@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("factor", [0.013, 1.0, 0.0, -2.0])
def test_it_is_as_exact_as_torch(dtype, smoothing, factor):
    logits, target = made(dtype)
    right, right_grad = by_torch(logits.double(), target, smoothing, factor)
    theirs, their_grad = by_torch(logits, target, smoothing, factor)
    leaf = logits.clone().requires_grad_()
    found = cross_entropy(leaf * 1, target, smoothing)
    (found * factor).backward()
    assert abs(found.double() - right) <= 2 * abs(theirs - right) + 1e-6 * right
    # ours is exp(logit - logsumexp), and is off by some ulps where logsumexp was rounded
    rounding = 2 * torch.finfo(torch.float32).eps * right_grad.abs().max()
    allowed = 2 * (their_grad - right_grad).abs().max() + rounding + 1e-7
    assert (leaf.grad.double() - right_grad).abs().max() <= allowed


def test_huge_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-3e4, -3e4, -3e4]], requires_grad=True)
    found = cross_entropy(logits * 1, torch.tensor([0, 1]))
    found.backward()
    assert found.item() == pytest.approx(torch.tensor(3.0).log().item(), rel=1e-6)
    assert torch.isfinite(logits.grad).all()


def test_a_second_use_of_the_logits_is_noticed():
    logits, target = made(torch.float32)
    x = (logits.requires_grad_() * 1).exp()  # exp needs its own output in the backward pass
    with pytest.raises(RuntimeError, match="inplace"):
        (cross_entropy(x, target) + 0).backward()
