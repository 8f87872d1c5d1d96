import pytest
import torch
from torch.autograd import gradcheck

from models.cases import (
    BATCH,
    SRC_LEN,
    SRC_VOCAB,
    TGT_VOCAB,
    build,
    classifier,
    language_model,
    pairs,
)
from regard.models import CLASSIFIERS, LANGUAGE_MODELS
from regard.symbols import EOS


def test_a_tagger_ends_after_the_last_input():
    src, lengths, _ = pairs()
    model = build("rnn").eval()
    tgt = torch.ones(BATCH, SRC_LEN + 2, dtype=torch.long)
    best = model(src, lengths, tgt).logits.argmax(dim=-1)
    for row, length in enumerate(lengths.tolist()):
        assert (best[row, length:] == EOS).all()


def test_a_tagger_sees_no_later_input():
    src, lengths, tgt = pairs()
    model = build("rnn").eval()
    other = src.clone()
    other[1, 3] = (src[1, 3] - 3) % 5 + 4
    before, after = model(src, lengths, tgt).logits, model(other, lengths, tgt).logits
    assert torch.equal(before[1, :3], after[1, :3])
    assert not torch.equal(before[1, 3], after[1, 3])


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


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_model_step_by_step_equals_all_at_once(name):
    _, _, tokens = pairs()
    model = language_model(name).double().eval()
    whole = model(tokens, need_weights=True)
    state, rows = model.start(BATCH), []
    for column in tokens.unbind(dim=1):
        out = model.step(column, state)
        state = out.state
        rows.append(out.logits)
    torch.testing.assert_close(torch.stack(rows, dim=1), whole.logits, atol=1e-10, rtol=0)
    first = model(tokens[:, :2])
    second = model(tokens[:, 2:], first.state.reorder(torch.arange(BATCH)))
    torch.testing.assert_close(second.logits, whole.logits[:, 2:], atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_model_sees_no_later_token(name):
    _, _, tokens = pairs()
    model = language_model(name).eval()
    other = tokens.clone()
    other[:, 3] = (tokens[:, 3] - 3) % (TGT_VOCAB - 4) + 4
    before, after = model(tokens).logits, model(other).logits
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3], after[:, 3])


@pytest.mark.parametrize("variant", ["self-attentive", "conv"])
def test_gradients_of_whole_models(variant):
    # through all parts at once: from the embedding table of the source to the logits
    src, lengths, tgt = pairs()
    model = build(variant, layers=1).double()
    table = model.encoder.embedding.table
    original = table.weight.detach().clone()

    def logits(change):
        table.weight.data = original
        weights = {"encoder.embedding.table.weight": original + change}
        return torch.func.functional_call(model, weights, (src, lengths, tgt[:, :2])).logits

    change = torch.zeros_like(original[:, :]).requires_grad_()
    assert gradcheck(logits, (change,), fast_mode=True)
