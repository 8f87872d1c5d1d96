"""A decoder with an external memory."""

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


def test_an_ensemble_shows_the_source_alone():
    src, lengths, _ = pairs()
    both = Ensemble([build("memory", slots=7), build("memory", slots=4)]).eval()
    kinds = ("cross", "memory")
    options = DecodingOptions(max_len=3)
    ((best, *_), *_) = decode(both, src, lengths, options, need_weights=True, kinds=kinds)
    assert set(best.attention) == {"cross"}
