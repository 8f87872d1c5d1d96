"""A decoder with an external memory."""

import pytest
import torch

from models.cases import BATCH, RECURRENT, build, pairs
from regard.decoding import DecodingOptions, Ensemble, decode

HIDDEN = RECURRENT["hidden"]


def test_the_parts_of_a_model_make_its_logits():
    src, lengths, tgt = pairs()
    model = build("memory").double().eval()
    plain, external = model.decoder.recurrent, model.decoder.external
    out = model(src, lengths, tgt, need_weights=True)
    state = plain.start(model.encode(src, lengths))
    slots, rnn = external.first.expand(BATCH, -1, -1), state.rnn
    context = recalled = torch.zeros(BATCH, HIDDEN).double()
    for t in range(tgt.shape[1]):
        x = plain.embedding.table.weight[tgt[:, t]]
        hidden, rnn = plain.stack.step(torch.cat([x, context, recalled], dim=1), rnn)
        seen, looked, _ = state.source.attend(plain.attention, hidden[:, None], need_weights=True)
        context = seen[:, 0]
        recalled, weights, slots = external(torch.cat([hidden, context], dim=1), slots)
        features = torch.cat([hidden, context, recalled], dim=1)
        logits = features @ plain.output.weight.T + plain.output.bias
        torch.testing.assert_close(out.logits[:, t], logits, atol=1e-12, rtol=0)
        torch.testing.assert_close(out.maps["cross"][0][:, :, t], looked[:, :, 0])
        torch.testing.assert_close(out.maps["memory"][0][:, 0, t], weights)


def test_the_map_of_the_memory_is_over_slots():
    src, lengths, tgt = pairs()
    (found,) = build("memory", slots=7)(src, lengths, tgt, need_weights=True).maps["memory"]
    assert found.shape == (BATCH, 1, tgt.shape[1], 7)
    torch.testing.assert_close(found.sum(-1), torch.ones(BATCH, 1, tgt.shape[1]))


def test_what_the_slots_hold_reaches_the_next_logits():
    # two decoders that differ in nothing but what a step left in the slots
    src, lengths, tgt = pairs()
    model = build("memory").eval()
    first = model.step(tgt[:, 0], model.start(model.encode(src, lengths))).state
    other = type(first)(first.recurrent, first.slots.roll(1, dims=2))
    assert not torch.equal(model.step(tgt[:, 1], first).logits, model.step(tgt[:, 1], other).logits)


def test_a_beam_carries_the_slots_of_its_own_hypothesis():
    src, lengths, _ = pairs()
    model = build("memory").double().eval()
    options = DecodingOptions(beam=4, nbest=4, max_len=5)
    for i, found in enumerate(decode(model, src, lengths, options)):
        for h in found:
            tgt = torch.tensor([[1, *h.tokens]])
            logits = model(src[i : i + 1], lengths[i : i + 1], tgt).logits.log_softmax(-1)
            expected = [logits[0, t, token].item() for t, token in enumerate([*h.tokens, 2])]
            assert h.token_log_probs == pytest.approx(expected, abs=1e-9)


def test_an_ensemble_shows_the_source_alone():
    src, lengths, _ = pairs()
    both = Ensemble([build("memory", slots=7), build("memory", slots=4)]).eval()
    kinds = ("cross", "memory")
    options = DecodingOptions(max_len=3)
    ((best, *_), *_) = decode(both, src, lengths, options, need_weights=True, kinds=kinds)
    assert set(best.attention) == {"cross"}
