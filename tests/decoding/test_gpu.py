"""The same targets on a GPU."""

import pytest
import torch

from decoding.test_presets import batch, model_of
from models.cases import VARIANTS
from regard.decoding import DecodingOptions, decode, force_decode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIONS = {
    "greedy": DecodingOptions(beam=1, max_len=8, no_repeat_ngram=3),
    "beam": DecodingOptions(beam=4, nbest=3, max_len=8, min_len=2),
    "prefix": DecodingOptions(beam=3, max_len=8, prefix=[[5], [], *[[7, 8]] * 30]),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_targets_are_those_of_the_cpu(variant, options):
    model, (src, lengths) = model_of(variant), batch()
    there = decode(model, src, lengths, OPTIONS[options], need_weights=True)
    here = decode(model.cuda(), src.cuda(), lengths.cuda(), OPTIONS[options], need_weights=True)
    for cpu, gpu in zip(there, here, strict=True):
        assert [h.tokens for h in cpu] == [h.tokens for h in gpu]
        for one, other in zip(cpu, gpu, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-8)
            for layer, same in zip(
                one.attention.get("cross", ()), other.attention.get("cross", ()), strict=True
            ):
                assert same.device.type == "cpu"
                torch.testing.assert_close(layer, same, atol=1e-6, rtol=0)
    targets = [row[0].tokens for row in here]
    forced = force_decode(model, src.cuda(), lengths.cuda(), targets, OPTIONS[options])
    assert [h.score for h in forced] == pytest.approx([row[0].score for row in here], abs=1e-8)


def test_samples_are_drawn_there():
    model, (src, lengths) = model_of("bahdanau").cuda(), batch()
    options = DecodingOptions(num_samples=3, seed=1, max_len=6, top_k=5, top_p=0.9)
    once, again = (decode(model, src.cuda(), lengths.cuda(), options) for _ in range(2))
    assert once == again
