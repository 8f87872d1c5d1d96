"""What decoding promises, for every preset and every variant of it."""

import pytest
import torch

from models.cases import SRC_VOCAB, VARIANTS, build
from regard.decoding import DecodingOptions, decode, force_decode

# trains or decodes with real models: not part of `make check`
pytestmark = pytest.mark.slow

BATCH, SRC_LEN = 32, 7
TAGGERS = ("rnn", "rnn-gru")
WITHOUT_CROSS = (*TAGGERS, "seq2seq", "seq2seq-gru")
#: language models have no source: whatever it is, they write the same
TEXTS = "lm-"
KINDS = ("cross", "decoder-self", "decoder-history", "encoder-self", "encoder-history", "memory")


def every_variant(test):
    """Run a test for all variants in `make long`, and for a part of them always."""
    return pytest.mark.sample(8)(pytest.mark.parametrize("variant", VARIANTS)(test))


def every_variant_with(*beams):
    """The same with one of the beams each, by turns."""
    values = [
        pytest.param(name, beam, marks=[pytest.mark.long] * (i % len(beams) != j))
        for i, name in enumerate(VARIANTS)
        for j, beam in enumerate(beams)
    ]
    return lambda test: pytest.mark.sample(5)(
        pytest.mark.parametrize(("variant", "beam"), values)(test)
    )


def model_of(variant):
    """In double precision, with weights so large that targets differ and no two hypotheses tie."""
    model = build(variant).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.ndim > 1 else 1)
    return model


def fitting_prefix(model, src, lengths, prefix):
    """Shorten the prefix of each row to what a tagger or a classifier writes there."""
    rows = [list(row) for row in prefix[: len(src)]]
    with torch.no_grad():
        exact = model.tgt_lengths(model.encode(src, lengths))
    if exact is None:
        return rows
    return [row[:most] for row, most in zip(rows, exact.tolist(), strict=True)]


def batch():
    draw = torch.Generator().manual_seed(5)
    src = torch.randint(4, SRC_VOCAB, (BATCH, SRC_LEN), generator=draw)
    lengths = torch.randint(0, SRC_LEN + 1, (BATCH,), generator=draw)
    lengths[:3] = torch.tensor([SRC_LEN, 0, 1])
    return src, lengths


@every_variant_with(1, 4)
def test_a_source_alone_is_decoded_as_in_a_batch(variant, beam):
    model, (src, lengths) = model_of(variant), batch()
    options = DecodingOptions(beam=beam, nbest=min(beam, 2), max_len=9)
    together = decode(model, src, lengths, options)
    different = len({tuple(row[0].tokens) for row in together})
    assert different == 1 if variant.startswith(TEXTS) else different > 1
    for i in (0, 1, 2, 11, 31):
        # as narrow as it can be: a source of no tokens still has a column
        width = max(1, int(lengths[i]))
        (alone,) = decode(model, src[i : i + 1, :width], lengths[i : i + 1], options)
        assert [h.tokens for h in alone] == [h.tokens for h in together[i]]
        assert [h.finished for h in alone] == [h.finished for h in together[i]]
        for one, other in zip(alone, together[i], strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-9)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-9)


@every_variant_with(1, 3)
def test_maps_and_scores_are_those_of_the_forced_target(variant, beam):
    model, (src, lengths) = model_of(variant), batch()
    src, lengths = src[:7], lengths[:7]
    options = DecodingOptions(beam=beam, nbest=beam, max_len=6, min_len=1)
    found = decode(model, src, lengths, options, need_weights=True, kinds=KINDS)
    for rank in range(beam):
        rows = [i for i, hypotheses in enumerate(found) if len(hypotheses) > rank]
        targets = [found[i][rank].tokens for i in rows]
        forced = force_decode(model, src[rows], lengths[rows], targets, options, kinds=KINDS)
        for i, expected in zip(rows, forced, strict=True):
            hypothesis = found[i][rank]
            assert hypothesis.score == pytest.approx(expected.score, abs=1e-9)
            assert hypothesis.token_log_probs == pytest.approx(expected.token_log_probs, abs=1e-9)
            assert set(hypothesis.attention) == set(expected.attention)
            crosses = variant not in WITHOUT_CROSS and not variant.startswith(TEXTS)
            assert ("cross" in hypothesis.attention) == crosses
            for kind, layers in expected.attention.items():
                for seen, wanted in zip(hypothesis.attention[kind], layers, strict=True):
                    torch.testing.assert_close(seen, wanted, atol=1e-5, rtol=0)


@every_variant
def test_an_empty_source_has_a_target(variant):
    model = model_of(variant)
    src, lengths = torch.full((1, 1), 9), torch.tensor([0])
    for beam in (1, 3):
        options = DecodingOptions(beam=beam, max_len=4)
        ((hypothesis, *_),) = decode(model, src, lengths, options, need_weights=True)
        assert torch.tensor(hypothesis.token_log_probs).isfinite().all()
        for layer in hypothesis.attention.get("cross", ()):
            assert layer.shape[1:] == (len(hypothesis.tokens) + 1, 0)
