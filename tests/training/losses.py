"""Both losses by one path or another, with their gradients; and the rule for a kernel of them.

As in tests/ops/rule.py: a kernel may err twice as much as torch's own path at the same type, both
measured against float64.
"""

import torch
import torch.nn.functional as F

from regard.ops import use_backend
from regard.training.losses import cross_entropy, definition, rdrop_loss

ALPHA = 5.0


def made(rows, vocab, passes=1, dtype=torch.float32, device="cpu"):
    """Logits of so many passes, targets, and which of them count."""
    rng = torch.Generator().manual_seed(vocab)
    logits = (4 * torch.randn(passes * rows, vocab, generator=rng)).to(dtype)
    target = torch.randint(0, vocab, (rows,), generator=rng)
    real = torch.arange(rows) % 3 != 1
    return logits.to(device), target.to(device), real.to(device)


def cross_entropies(backend, logits, target, smoothing, real, factor):
    """The loss, and the gradient of `factor` times it; float64 gets the definition."""
    leaf = logits.clone().requires_grad_()
    if logits.dtype == torch.float64:
        options = {"reduction": "none", "label_smoothing": smoothing}
        every = F.cross_entropy(leaf, target, **options)
        return differentiated((every if real is None else every * real).sum(), leaf, factor)
    with use_backend(backend):
        return differentiated(cross_entropy(leaf * 1, target, smoothing, real), leaf, factor)


def rdrops(backend, logits, target, smoothing, real, factor, alpha=ALPHA):
    """The same for R-Drop."""
    leaf = logits.clone().requires_grad_()
    if logits.dtype == torch.float64:
        passes = leaf[: len(target)], leaf[len(target) :]
        return differentiated(definition(*passes, target, smoothing, alpha, real), leaf, factor)
    with use_backend(backend):
        return differentiated(rdrop_loss(leaf * 1, target, smoothing, alpha, real), leaf, factor)


def differentiated(loss, leaf, factor):
    (loss * factor).backward()
    return loss.detach(), leaf.grad


def breaches(loss, logits, target, smoothing, real, factor):
    """What the kernels of a loss break of the rule, in words."""
    given = (target, smoothing, real, factor)
    right, plain = loss("torch", logits.double(), *given), loss("torch", logits, *given)
    trial = loss("triton", logits, *given)
    eps = torch.finfo(torch.float32).eps
    # some roundings of a result, where torch is exact by luck
    size = right[1].abs().max().clamp(min=1)
    tiny = (8 * eps * right[0].abs(), size * max(torch.finfo(logits.dtype).eps / 2, 8 * eps))
    found = []
    for i, name in enumerate(("loss", "gradient")):
        if trial[i].dtype != plain[i].dtype:
            found.append(f"the {name} is of {trial[i].dtype}")
        error, allowed = distance(trial[i], right[i]), 2 * distance(plain[i], right[i]) + tiny[i]
        if not error <= allowed:  # so worded that NaN is a breach
            found.append(f"the {name} is {error:.2e} off, and may be {allowed:.2e}")
    if real is not None and trial[1][: len(real)][~real].any():
        found.append("rows that do not count have a gradient")
    return found


def distance(found, right):
    return (found.double() - right).abs().max()
