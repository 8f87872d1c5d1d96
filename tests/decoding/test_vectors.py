"""Decoding vectors is decoding."""

import pytest
import torch

from decoding.toys import greedy
from models.test_adapters import NAMES, adapt, build, source, spoil, width
from regard.decoding import DecodingOptions, Ensemble, decode
from regard.errors import ArgumentError
from regard.models import with_input

STEPS = 5
OPTIONS = DecodingOptions(max_len=STEPS, min_len=1)

#: every preset over joined frames, and two of them over the others
CASES = [(name, "stacked") for name in NAMES]
CASES += [
    (name, adapter) for name in ("luong", "transformer") for adapter in ("vectors", "convolved")
]

every_preset = pytest.mark.parametrize("name", NAMES)


def model_of(name, adapter="stacked"):
    """With weights so large that targets differ."""
    model = build(name, adapter)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.ndim > 1 else 1)
    return model


@every_preset
def test_order_and_padding_change_nothing(name):
    model, (src, lengths) = model_of(name), source()
    options = DecodingOptions(beam=3, nbest=2, max_len=STEPS)
    found = decode(model, src, lengths, options)
    wide = torch.nn.functional.pad(spoil(src, lengths, float("nan")), (0, 0, 0, 5))
    order = torch.tensor([2, 0, 1])
    again = decode(model, wide[order], lengths[order], options)
    for i, row in zip(order.tolist(), again, strict=True):
        assert [h.tokens for h in row] == [h.tokens for h in found[i]]
        assert [h.score for h in row] == pytest.approx([h.score for h in found[i]], abs=1e-9)


def test_an_ensemble_reads_vectors_if_all_make_the_same_lengths():
    model, (src, lengths) = model_of("bahdanau"), source()
    one, two = greedy(model, src, lengths, OPTIONS), model_of("bahdanau")
    joined = greedy(Ensemble([model, two]), src, lengths, OPTIONS)
    assert [row[0].tokens for row in joined] == [row[0].tokens for row in one]
    other = with_input(two, adapt("vectors", width("bahdanau"))).double()
    with pytest.raises(ArgumentError, match="memories of one length, but it is 6 and 11"):
        greedy(Ensemble([model, other]), src, lengths, OPTIONS)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "adapter"), CASES)
def test_targets_on_a_gpu_are_those_of_the_cpu(name, adapter):
    model, (src, lengths) = model_of(name, adapter), source()
    options = DecodingOptions(beam=3, max_len=STEPS)
    there = decode(model, src, lengths, options)
    here = decode(model.cuda(), src.cuda(), lengths.cuda(), options)
    assert [row[0].tokens for row in there] == [row[0].tokens for row in here]
