"""A search in blocks of steps, on padded batches, is the plain search."""

from itertools import chain

import pytest
import torch

from decoding.test_presets import batch, model_of
from decoding.toys import Toy, sources
from models.cases import VARIANTS
from regard.decoding import DecodingOptions, decode
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.search_steps import padded_rows

MAX_LEN = 6
OPTIONS = {
    "greedy": DecodingOptions(beam=1, max_len=MAX_LEN),
    "beam": DecodingOptions(beam=3, nbest=3, max_len=MAX_LEN),
    "wider than the vocabulary": DecodingOptions(beam=9, nbest=4, max_len=MAX_LEN),
    "penalty": DecodingOptions(beam=3, nbest=2, max_len=MAX_LEN, length_penalty=0.7),
    "rules": DecodingOptions(
        beam=3, max_len=MAX_LEN, no_repeat_ngram=2, prefix=[[4], [], [5, 4], *[[]] * 6]
    ),
    "limits that differ": DecodingOptions(beam=2, nbest=2, max_len_ratio=1.0, max_len_extra=1),
    "fewest tokens": DecodingOptions(beam=2, min_len=5, max_len=MAX_LEN),
    "samples": DecodingOptions(num_samples=3, max_len=MAX_LEN, seed=4, top_k=5),
    "no tokens": DecodingOptions(beam=3, max_len=0),
    "as in a folder's settings": DecodingOptions(
        beam=3, max_len=MAX_LEN, ends=[5], suppressed=[6], suppressed_first=[4]
    ),
}


def assert_same(found, expected, atol=0.0):
    assert len(found) == len(expected)
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.tokens == other.tokens
        assert one.score == pytest.approx(other.score, abs=1e-5)
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-5)
        assert one.finished == other.finished
        for place, same in zip(one.alternatives, other.alternatives, strict=True):
            assert [token for token, _ in place] == [token for token, _ in same]
            own = [log_prob for _, log_prob in place]
            assert own == pytest.approx([log_prob for _, log_prob in same], abs=1e-5)
        assert one.attention.keys() == other.attention.keys()
        for kind, layers in one.attention.items():
            for layer, same in zip(layers, other.attention[kind], strict=True):
                torch.testing.assert_close(layer, same, atol=1e-5, rtol=0)


@pytest.mark.sample(5)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("seed", range(2))
def test_hypotheses_are_those_of_the_plain_search(options, seed):
    toy = Toy(7, MAX_LEN, src_len=8, seed=seed)
    toy.logits[..., 2] += 1.5  # so that sources end at different steps
    src, lengths = sources(0, 3, 5, 1, 2, 6, 4, 0, 1)
    lengths[1], lengths[4] = 2, 1
    wish = {"need_weights": True, "alternatives": 3}
    plain = decode(toy, src, lengths, options, **wish)
    assert all(len(h.alternatives) == len(h.tokens) + 1 for h in chain(*plain))
    graphs = DecodingGraphs(toy, records=False)
    toy.rows_per_step.clear()
    assert_same(decode(toy, src, lengths, options, **wish, graphs=graphs), plain)
    assert toy.rows_per_step[0] == padded_rows(len(src)) * max(options.num_samples, 1)


def test_rows_that_are_done_leave_the_batch_when_half_of_them_are():
    toy = Toy(7, MAX_LEN, src_len=8)
    toy.logits[..., 2] += 8.0  # sources end at once
    toy.logits[3, ..., 2] -= 100.0  # but for this one
    src, lengths = sources(0, 1, 2, 3, 4, 5, 6, 0, 1)
    options = DecodingOptions(beam=2, max_len=MAX_LEN)
    plain = decode(toy, src, lengths, options)
    toy.rows_per_step.clear()
    graphs = DecodingGraphs(toy, records=False)
    assert_same(decode(toy, src, lengths, options, graphs=graphs), plain)
    assert toy.rows_per_step == [12, 24, 24, 24, 2, 2, 2]


@pytest.mark.sample(3)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_preset_searches_in_blocks(variant):
    model, (src, lengths) = model_of(variant), batch()
    kinds = ("cross", "decoder-self", "decoder-history", "encoder-self", "memory")
    options = DecodingOptions(beam=3, nbest=2, max_len=9)
    found = [
        decode(model, src, lengths, options, need_weights=True, kinds=kinds, graphs=graphs)
        for graphs in (None, DecodingGraphs(model, records=False))
    ]
    assert_same(*found)


def test_graphs_in_use_leave_another_search_to_the_plain_loop():
    toy = Toy(7, MAX_LEN, src_len=8)
    graphs = DecodingGraphs(toy, records=False)
    src, lengths = sources(1, 2, 3)
    options = DecodingOptions(beam=2, max_len=4)
    with graphs.claim(src) as is_free:
        assert is_free
        toy.rows_per_step.clear()
        decode(toy, src, lengths, options, graphs=graphs)
        assert toy.rows_per_step[0] == 3  # not padded to 4
    decode(toy, src, lengths, options, graphs=graphs)
    assert toy.rows_per_step[-1] > 3
