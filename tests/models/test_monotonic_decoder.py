"""Hard monotonic attention: the sum over alignments, and what it is made of."""

import itertools

import pytest
import torch

from models.cases import BATCH, TGT_LEN, build, pairs
from regard.training.losses import Objective

WRITTEN = 3


def parts(model, src, lengths, tgt):
    """Scores (tgt_len, src_len) and emissions (tgt_len, src_len, vocab) of each row, by itself."""
    decoder = model.decoder
    for row, length in enumerate(lengths.tolist()):
        memory = model.encode(src[row : row + 1, :length], lengths[row : row + 1]).output[0]
        s, _ = decoder.body.stack(decoder.embedding(tgt[row : row + 1]))
        s = s[0]
        scores = torch.einsum("td,de,ie->ti", s, decoder.attention.key_proj.weight, memory)
        rows = []
        for h in memory:
            joined = torch.cat([s, h.expand(len(s), -1)], dim=1)
            weight = torch.cat([decoder.body_proj.weight, decoder.memory_proj.weight], dim=1)
            hidden = torch.tanh(joined @ weight.T + decoder.body_proj.bias)
            rows.append((hidden @ decoder.output.weight.T + decoder.output.bias).log_softmax(1))
        yield scores, torch.stack(rows, dim=1)


def by_enumeration(model, src, lengths, tgt, written):
    """`log p(y_1 .. y_n)` of each row, by going through every alignment."""
    found = []
    for row, (scores, emission) in enumerate(parts(model, src, lengths, tgt)):
        total = []
        for path in itertools.combinations_with_replacement(range(scores.shape[1]), len(tgt[row])):
            term = torch.zeros((), dtype=scores.dtype)
            for t, (j, i) in enumerate(itertools.pairwise((0, *path))):
                term = term + scores[t, j:].log_softmax(0)[i - j]
                term = term + emission[t, i, written[row, t]]
            total.append(term)
        found.append(torch.stack(total).logsumexp(0))
    return torch.stack(found)


def short():
    """Sources, and targets of a few tokens: what is read and what is written."""
    src, lengths, tgt = pairs()
    written = torch.cat([tgt[:, 1:WRITTEN], torch.full((BATCH, 1), 2)], dim=1)
    return src, lengths, tgt[:, :WRITTEN], written


@pytest.mark.parametrize("layers", [1, 2])
def test_the_likelihood_is_the_sum_over_all_alignments(layers):
    src, lengths, tgt, written = short()
    model = build("monotonic", layers=layers).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)
    logits = model(src, lengths, tgt).logits
    found = logits.gather(2, written[..., None]).squeeze(2).sum(dim=1)
    expected = by_enumeration(model, src, lengths, tgt, written)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    weights = list(model.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(found.sum(), weights),
        torch.autograd.grad(expected.sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_the_loss_may_write_over_the_logits():
    src, lengths, tgt = pairs()
    gold = tgt.roll(-1, dims=1)
    model, other = build("monotonic"), build("monotonic")
    Objective(model, 0.1)(src, lengths, tgt, gold).backward()
    logits = other(src, lengths, tgt).logits.flatten(0, 1)
    torch.nn.functional.cross_entropy(
        logits, gold.flatten(), label_smoothing=0.1, reduction="sum"
    ).backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-5, rtol=1e-4)


def test_a_source_without_tokens_is_written_from_what_was_written():
    src, _, tgt = pairs()
    model, nothing = build("monotonic").eval().double(), torch.zeros(BATCH, dtype=torch.long)
    out = model(src, nothing, tgt, need_weights=True)
    assert (out.maps["cross"][0] == 0).all()
    whole = torch.zeros(BATCH, TGT_LEN, dtype=torch.float64)
    torch.testing.assert_close(out.logits.logsumexp(dim=2), whole)
    # another shape, so the matrix products may be other kernels'
    shorter = model(src[:, :1], nothing, tgt).logits
    torch.testing.assert_close(out.logits, shorter, atol=1e-12, rtol=0)
