"""The mixture of writing and copying, and the coverage loss."""

import math

import pytest
import torch

from models.cases import BATCH, RECURRENT, SRC_VOCAB, build, pairs
from regard.errors import ArgumentError
from regard.models import PRESETS
from regard.models.pointer_decoder import merge_equal_tokens, mixture
from regard.training.losses import cross_entropy

VOCAB, STEPS, WIDTH = 11, 3, 5


def parts():
    """Logits, gates, weights over each source, and sources in which tokens come again."""
    draw = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(BATCH, STEPS, VOCAB, generator=draw, dtype=torch.float64)
    gate = torch.rand(BATCH, STEPS, generator=draw, dtype=torch.float64)
    weights = torch.rand(BATCH, STEPS, WIDTH, generator=draw, dtype=torch.float64)
    weights = weights / weights.sum(dim=2, keepdim=True)
    return logits, gate, weights, torch.tensor([[4, 9, 4, 4, 2], [5, 5, 6, 10, 2], [7, 8, 9, 4, 5]])


def by_loops(logits, gate, weights, src, copied=VOCAB):
    """Probabilities by the formula, one token at a time, in Python's own numbers."""
    rows = []
    for b in range(BATCH):
        for t in range(STEPS):
            g = gate[b, t].item()
            scores = [math.exp(x) for x in logits[b, t].tolist()]
            taken = [
                sum(weights[b, t, i].item() for i in range(WIDTH) if src[b, i].item() == y)
                for y in range(VOCAB)
            ]
            taken = [share if y < copied else 0.0 for y, share in enumerate(taken)]
            written = 1 - (1 - g) * sum(taken)
            rows.append(
                [
                    written * s / sum(scores) + (1 - g) * c
                    for s, c in zip(scores, taken, strict=True)
                ]
            )
    return torch.tensor(rows, dtype=torch.float64).view(BATCH, STEPS, VOCAB)


def mixed(logits, gate, weights, src, copied=VOCAB):
    taken = merge_equal_tokens(weights, src, copied)
    return mixture(logits, gate, taken, src[:, None].expand_as(taken))


@pytest.mark.parametrize("copied", [VOCAB, 9])
def test_the_mixture_against_loops(copied):
    logits, gate, weights, src = parts()
    found = mixed(logits, gate, weights, src, copied)
    expected = by_loops(logits, gate, weights, src, copied)
    torch.testing.assert_close(found.exp(), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.exp().sum(dim=2), torch.ones(BATCH, STEPS).double())
    torch.testing.assert_close(found.log_softmax(dim=2), found, atol=1e-12, rtol=0)


@pytest.mark.parametrize("gate", [0.0, 1e-30, 0.5, 1.0])
def test_what_nobody_can_write_is_finite_and_has_finite_gradients(gate):
    # logits so far apart that the softmax of most is zero in float32; one source is all padding
    logits = torch.zeros(2, 1, VOCAB)
    logits[..., 3] = 300.0
    weights = torch.zeros(2, 1, WIDTH)
    weights[0, 0, 0] = 1.0
    src, gates = parts()[3][:2], torch.full((2, 1), gate)
    leaves = [x.requires_grad_() for x in (logits, gates, weights)]
    found = mixed(*leaves, src)
    assert found.isfinite().all()
    assert (found < -60).any()
    for target in range(VOCAB):
        loss = cross_entropy(mixed(*leaves, src).flatten(0, 1), torch.tensor([target] * 2), 0.1)
        loss.backward()
        for leaf in leaves:
            assert leaf.grad.isfinite().all()
            leaf.grad = None


def test_the_parts_of_a_model_make_its_logits():
    src, lengths, tgt = pairs()
    model = build("pointer", layers=1).double().eval()
    decoder, plain = model.decoder, model.decoder.recurrent
    out = model(src, lengths, tgt, need_weights=True)
    state = plain.start(model.encode(src, lengths))
    context = torch.zeros(BATCH, RECURRENT["hidden"]).double()
    for t in range(tgt.shape[1]):
        x = plain.embedding.table.weight[tgt[:, t]]
        hidden, rnn = plain.stack.step(torch.cat([x, context], dim=1), state.rnn)
        context, looked, source = state.source.attend(
            plain.attention, hidden[:, None], need_weights=True
        )
        context = context[:, 0]
        state = type(state)(rnn, context, source)
        seen = torch.cat([hidden, context, x], dim=1)
        gate = torch.sigmoid(seen @ decoder.gate.linear.weight[0] + decoder.gate.linear.bias)
        scores = seen[:, : 2 * RECURRENT["hidden"]] @ plain.output.weight.T + plain.output.bias
        for b in range(BATCH):
            p = gate[b] * scores[b].softmax(dim=0)
            for i in range(lengths[b]):
                p[src[b, i]] += (1 - gate[b]) * looked[b, 0, 0, i]
            torch.testing.assert_close(out.logits[b, t].exp(), p, atol=1e-12, rtol=0)
    assert out.penalty is None


def test_what_only_sources_have_is_never_copied():
    src, _, tgt = pairs()
    src[0] = torch.arange(SRC_VOCAB - 7, SRC_VOCAB)
    model = build("pointer", src_only=3).eval()
    with torch.no_grad():
        model.decoder.recurrent.output.bias[-3:] = -1000.0
        model.decoder.gate.linear.bias.fill_(-20.0)
    probs = model(src, torch.tensor([7, 7, 7]), tgt).logits.exp()
    assert (probs[..., -3:] < 1e-20).all()
    torch.testing.assert_close(probs.sum(dim=2), torch.ones(BATCH, tgt.shape[1]))
    assert (probs[0, :, SRC_VOCAB - 7 : -3] > 0.05).all()


def test_the_penalty_is_the_weighed_coverage_loss_of_the_kept_tokens():
    src, lengths, tgt = pairs()
    model = build("pointer-coverage", coverage=2.5).double().eval()
    out = model(src, lengths, tgt, need_weights=True)
    (weights,) = out.maps["cross"]
    for b in range(BATCH):
        covered = torch.zeros(src.shape[1]).double()
        for t in range(tgt.shape[1]):
            now = weights[b, 0, t]
            expected = 2.5 * sum(min(a, c) for a, c in zip(now, covered, strict=True))
            torch.testing.assert_close(out.penalty[b, t], torch.as_tensor(expected))
            covered = covered + now
    keep = torch.rand(tgt.shape) < 0.5
    torch.testing.assert_close(model(src, lengths, tgt, keep=keep).penalty, out.penalty[keep])


@pytest.mark.plain
def test_two_vocabularies_cannot_be_copied_between():
    with pytest.raises(ArgumentError, match=r"17 source and 13 target tokens: train with shared_v"):
        PRESETS["pointer"](17, 13)
