"""Memory networks: hops over the sentences of a story."""

from pathlib import Path

import pytest
import torch

from regard.decoding import DecodingGraphs, DecodingOptions, decode
from regard.models import PRESETS, STORY_PRESETS
from regard.models.memory_network import position_encoding

KEYS = Path(__file__).parent / "keys"
VOCAB, ANSWERS = 17, 11
SIZES = {"memory-network": {"dim": 5, "hops": 2}, "story-transformer": {"dim": 6, "heads": 2}}
BATCH, SENTENCES, WORDS = 3, 7, 4


def build(preset="memory-network", **options):
    torch.manual_seed(1)
    return PRESETS[preset](VOCAB, ANSWERS, **{**SIZES[preset], "dropout": 0.0, **options})


def stories():
    torch.manual_seed(2)
    src = torch.randint(4, VOCAB, (BATCH, SENTENCES, WORDS)).float()
    src[:, ::2, 3] = 0.0  # sentences of three words
    return src, torch.tensor([7, 4, 2]), torch.tensor([[1, 5], [1, 6], [1, 7]])


def test_weights_of_words_by_their_places():
    words = torch.tensor([[True, True, False], [True, True, True]])
    found = position_encoding(words, 5)
    # l_kj = (1 - j/J) - (k/d)(1 - 2j/J), j and k from 1
    assert found[0, 0, 1] == pytest.approx((1 - 1 / 2) - (2 / 5) * (1 - 2 / 2))
    assert found[1, 1, 4] == pytest.approx((1 - 2 / 3) - (5 / 5) * (1 - 2 * 2 / 3))


def test_one_hop_by_hand():
    src, lengths, tgt = stories()
    model = build(hops=1).double().eval()
    out = model(src, lengths, tgt, need_weights=True)
    table, ages = model.encoder.embedding.table.weight, model.encoder.temporal.weight
    row, count = 1, 3  # three sentences and a question

    def vector(sentence, half):
        ids = [int(i) for i in src[row, sentence] if i]
        total = torch.zeros(5).double()
        for j, i in enumerate(ids, start=1):
            k = torch.arange(1, 6) / 5
            total += ((1 - j / len(ids)) - k * (1 - 2 * j / len(ids))) * table[i, half]
        return total

    first, second = slice(0, 5), slice(5, 10)
    u = vector(3, first)
    m = torch.stack([vector(i, first) + ages[count - 1 - i, first] for i in range(count)])
    c = torch.stack([vector(i, second) + ages[count - 1 - i, second] for i in range(count)])
    p = (m @ u).softmax(0)
    logits = model.output(u + p @ c)
    torch.testing.assert_close(out.logits[row, 0], logits)
    torch.testing.assert_close(out.maps["hops"][0][row, 0, 0, :count], p)
    assert not out.maps["hops"][0][row, 0, 0, count:].any()  # nor is the question attended to


@pytest.mark.parametrize("preset", sorted(STORY_PRESETS))
def test_what_stands_beyond_a_story_cannot_matter(preset):
    src, lengths, tgt = stories()
    model = build(preset).eval()
    before = model(src, lengths, tgt, need_weights=True)
    src[1, 4:], src[2, 2:] = torch.nan, 1e9
    after = model(src, lengths, tgt, need_weights=True)
    torch.testing.assert_close(before.logits, after.logits)
    alone = model(src[2:, :2], lengths[2:], tgt[2:], need_weights=True)
    torch.testing.assert_close(before.logits[2:], alone.logits)
    torch.testing.assert_close(before.maps["hops"][0][2:, ..., :2], alone.maps["hops"][0])


@pytest.mark.parametrize("preset", sorted(STORY_PRESETS))
def test_decoding_writes_one_answer(preset):
    src, lengths, _ = stories()
    model = build(preset).eval()
    options, kinds = DecodingOptions(beam=3, nbest=3), ("hops", "cross")
    found = decode(model, src, lengths, options, need_weights=True, kinds=kinds)
    for hypotheses, length in zip(found, lengths.tolist(), strict=True):
        assert [len(h.tokens) for h in hypotheses] == [1, 1, 1]
        assert hypotheses[0].attention["hops"][0].shape == (1, model.reader.hops, length)
    graphs = DecodingGraphs(model, records=False)
    again = decode(model, src, lengths, options, graphs=graphs)
    assert [[h.tokens for h in several] for several in again] == [
        [h.tokens for h in several] for several in found
    ]


def test_layerwise_hops_have_the_same_tables():
    model = build(sharing="layerwise", hops=3)
    assert model.encoder.embedding.table.weight.shape == (VOCAB, 2 * 5)
    assert model.reader.carry.weight.shape == (5, 5)
    src, lengths, tgt = stories()
    assert model(src, lengths, tgt, need_weights=True).maps["hops"][0].shape[2] == 3


def test_linear_start_ends_after_so_many_steps():
    src, lengths, tgt = stories()
    model, plain = build(linear_start=2, noise=0.0), build(noise=0.0)
    plain.load_state_dict(model.state_dict(), strict=False)
    for _ in range(2):
        early = model.train()(src, lengths, tgt).logits
    assert not torch.allclose(early, plain(src, lengths, tgt).logits)
    assert model.reader.steps == 2
    torch.testing.assert_close(model(src, lengths, tgt).logits, plain(src, lengths, tgt).logits)


def test_noise_moves_the_past_away_in_training_alone():
    model = build(noise=0.9, times=64)
    lengths = torch.tensor([SENTENCES])
    plain = model.eval().encoder._ages(lengths, SENTENCES)
    assert plain.tolist() == [[5, 4, 3, 2, 1, 0, 0]]
    drawn = model.train().encoder._ages(lengths, SENTENCES)
    assert (drawn >= plain).all()
    assert (drawn > plain).any()
    assert (drawn[0, :-2].diff() < 0).all()  # the order stays


@pytest.mark.parametrize("preset", sorted(STORY_PRESETS))
def test_names_of_weights_are_frozen(preset):
    shapes = [f"{name} {tuple(t.shape)}" for name, t in build(preset).state_dict().items()]
    assert shapes == (KEYS / f"{preset}.txt").read_text().splitlines()
