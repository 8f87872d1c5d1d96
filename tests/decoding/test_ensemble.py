import pytest
import torch

from decoding.test_presets import batch, model_of
from decoding.toys import Toy, sources
from models.cases import TOKEN_PRESETS
from regard.decoding import DecodingOptions, Ensemble, decode
from regard.errors import ArgumentError


@pytest.mark.sample(6)
@pytest.mark.parametrize("variant", TOKEN_PRESETS)
def test_a_model_twice_is_the_model(variant):
    model, (src, lengths) = model_of(variant), batch()
    src, lengths = src[:5], lengths[:5]
    options = DecodingOptions(beam=3, nbest=2, max_len=5)
    kinds = ("cross", "decoder-self", "encoder-self")
    alone = decode(model, src, lengths, options, need_weights=True, kinds=kinds)
    twice = decode(Ensemble([model, model]), src, lengths, options, need_weights=True, kinds=kinds)
    for one, two in zip(alone, twice, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in two]
        for a, b in zip(one, two, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-9)
            assert a.attention.keys() == b.attention.keys()
            for kind, layers in a.attention.items():
                for mine, theirs in zip(layers, b.attention[kind], strict=True):
                    torch.testing.assert_close(mine, theirs)


def test_probabilities_are_averaged():
    toys = [Toy(7, 3, seed=seed) for seed in range(3)]
    options = DecodingOptions(beam=4, max_len=3)
    ((hypothesis,),) = decode(Ensemble(toys), *sources(2), options, need_weights=True)
    prefix, expected = (), []
    for token in (*hypothesis.tokens, 2):
        rows = [toy.logits[2, toy._code(prefix)].softmax(0)[token] for toy in toys]
        expected.append((sum(rows) / 3).log().item())
        prefix += (token,)
    assert hypothesis.token_log_probs == pytest.approx(expected)
    looks = torch.stack([toy.look(2, tuple(hypothesis.tokens), 5) for toy in toys])
    torch.testing.assert_close(hypothesis.attention["cross"][0].mean(0), looks.mean(0))


@pytest.mark.plain
def test_vocabularies_must_agree():
    joint = Ensemble([Toy(7, 3), Toy(8, 3)])
    with pytest.raises(ArgumentError, match=r"^models must .*one size.*7 and 8: .+"):
        decode(joint, *sources(0), DecodingOptions(max_len=3))
