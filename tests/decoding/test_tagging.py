"""A model that writes one token for each of its source does so however it is decoded."""

import pytest
import torch

from models.cases import SRC_VOCAB, build
from regard.decoding import DecodingOptions, decode, force_decode
from regard.symbols import EOS, UNK

SRC_LEN = 7
#: tokens of each source, its eos among them; the last has nothing but that
LENGTHS = [7, 3, 1, 5, 2, 1]
TAGS = [length - 1 for length in LENGTHS]

SEARCHES = {
    "greedy": DecodingOptions(beam=1),
    "beam": DecodingOptions(beam=5),
    "n-best": DecodingOptions(beam=5, nbest=5),
    "samples": DecodingOptions(num_samples=3, seed=1),
    "best samples": DecodingOptions(num_samples=3, seed=1, top_k=3, top_p=0.9, temperature=2.0),
    "prefix": DecodingOptions(prefix=[[5, 6, 7], [8], [], [5], [], []]),
    "no n-gram twice": DecodingOptions(no_repeat_ngram=1),
    "short": DecodingOptions(max_len_ratio=0.0, max_len_extra=0),
    "long": DecodingOptions(min_len=30),
}
every_search = pytest.mark.parametrize("name", SEARCHES)


def batch():
    draw = torch.Generator().manual_seed(5)
    lengths = torch.tensor(LENGTHS)
    src = torch.randint(4, SRC_VOCAB, (len(LENGTHS), SRC_LEN), generator=draw)
    src[torch.arange(len(LENGTHS)), lengths - 1] = EOS
    return src, lengths


def tagger(eos: float, variant="rnn"):
    """Wants to end at once, or never, even where it has read all."""
    model = build(variant).double().eval()
    with torch.no_grad():
        model.output.bias[EOS] = eos
    return model


@pytest.mark.sample(8)
@every_search
@pytest.mark.parametrize("eos", [9.0, -9.0])
def test_a_tagger_writes_as_many_tokens_as_it_reads(name, eos):
    src, lengths = batch()
    found = decode(tagger(eos), src, lengths, SEARCHES[name])
    for row, tags in zip(found, TAGS, strict=True):
        assert row
        assert {len(one.tokens) for one in row} == {tags}
        assert all(EOS not in one.tokens and one.finished for one in row)


def test_the_best_tags_win_and_their_scores_are_the_models_own():
    src, lengths = batch()
    model = tagger(9.0)
    with torch.no_grad():
        logits = model.start(model.encode(src, lengths)).logits
    logits[..., : UNK + 1] = float("-inf")  # no tag
    found = decode(model, src, lengths, DecodingOptions(beam=5))
    for row, tags in enumerate(TAGS):
        assert found[row][0].tokens == logits[row, :tags].argmax(-1).tolist()
    targets = [row[0].tokens for row in found]
    for (best, *_), forced in zip(found, force_decode(model, src, lengths, targets), strict=True):
        assert best.score == pytest.approx(forced.score, abs=1e-9)
        assert best.token_log_probs == pytest.approx(forced.token_log_probs, abs=1e-9)
