import pytest
import torch

from models.cases import (
    BATCH,
    SRC_LEN,
    SRC_VOCAB,
    build,
    classifier,
    pairs,
)
from regard.models import CLASSIFIERS
from regard.symbols import EOS


def test_a_tagger_ends_after_the_last_input():
    src, lengths, _ = pairs()
    model = build("rnn").eval()
    tgt = torch.ones(BATCH, SRC_LEN + 2, dtype=torch.long)
    best = model(src, lengths, tgt).logits.argmax(dim=-1)
    for row, length in enumerate(lengths.tolist()):
        assert (best[row, length:] == EOS).all()


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_pools_real_tokens(name):
    src, lengths, _ = pairs()
    model = classifier(name).eval()
    logits, weights, _ = model(src, lengths, need_weights=True)
    assert logits.shape == (BATCH, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, 1, 1))
    dirty = src.clone()
    dirty[0, 4:] = torch.randint(0, SRC_VOCAB, (3,))
    assert torch.equal(model(dirty, lengths, need_weights=True).logits, logits)
    model(src, lengths).logits.pow(2).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
