import pytest
import torch

from decoding.toys import Toy, greedy, sources
from regard.decoding import DecodingOptions, decode, force_decode
from regard.errors import RegardError
from regard.symbols import EOS, UNK

VOCAB, MAX_LEN = 7, 3  # four words: 3 (unk), 4, 5, 6; 85 targets
EVERYTHING = 200


def score_by_hand(toy, source, target, alpha):
    return toy.log_prob(source, target) / ((5 + len(target) + 1) / 6) ** alpha


def ranked(toy, source, alpha, targets=None):
    """All targets with their scores, best first."""
    targets = targets or toy.all_targets()
    return sorted(((score_by_hand(toy, source, t, alpha), t) for t in targets), reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.7])
def test_a_wide_beam_is_an_exhaustive_search(alpha):
    toy = Toy(VOCAB, MAX_LEN)
    src, lengths = sources(0, 3, 5)
    lengths[1] = 2
    options = DecodingOptions(
        beam=EVERYTHING,
        nbest=9,
        max_len=MAX_LEN,
        length_penalty=alpha,
    )
    found = decode(toy, src, lengths, options)
    for source, hypotheses in zip((0, 3, 5), found, strict=True):
        best = ranked(toy, source, alpha)[:9]
        assert [tuple(h.tokens) for h in hypotheses] == [target for _, target in best]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in best])
        for h in hypotheses:
            assert h.log_prob == pytest.approx(toy.log_prob(source, tuple(h.tokens)))
            assert h.token_log_probs == pytest.approx(toy.terms(source, tuple(h.tokens)))


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_narrow_beam_equals_one_that_never_stops_early(alpha):
    # the reference below keeps every hypothesis that ends, and stops at the limit alone
    for seed in range(12):
        toy = Toy(VOCAB, MAX_LEN, seed=seed)
        options = DecodingOptions(beam=3, nbest=2, max_len=MAX_LEN, length_penalty=alpha)
        (found,) = decode(toy, *sources(1), options)
        expected = plain_beam(toy, 1, beam=3, alpha=alpha)[:2]
        assert [tuple(h.tokens) for h in found] == [target for _, target in expected]


def plain_beam(toy, source, beam, alpha):
    live, ended = [((), 0.0)], []
    for step in range(toy.max_len + 1):
        ways = []
        for prefix, score in live:
            row = toy.logits[source, toy._code(prefix)].log_softmax(-1).tolist()
            allowed = [EOS] if step == toy.max_len else range(EOS, toy.vocab)
            ways += [(score + row[token], prefix, token) for token in allowed]
        ways.sort(reverse=True)
        norm = ((5 + step + 1) / 6) ** alpha
        ended += [(score / norm, prefix) for score, prefix, token in ways[:beam] if token == EOS]
        live = [((*prefix, token), score) for score, prefix, token in ways if token != EOS][:beam]
    return sorted(ended, reverse=True)


def test_the_limit_grows_with_the_source():
    toy = Toy(VOCAB, 5)
    toy.logits[..., EOS] = -50.0  # it never wants to end
    src, _ = sources(0, 1, 2)
    options = DecodingOptions(beam=1, max_len_ratio=0.6, max_len_extra=1)
    found = greedy(toy, src, torch.tensor([0, 2, 5]), options)
    assert [len(h.tokens) for (h,) in found] == [1, 2, 4]
    assert not any(h.finished for (h,) in found)
    prefix = [[4, 4, 4], [], []]
    options = DecodingOptions(max_len_ratio=0.0, max_len_extra=0, min_len=2, prefix=prefix)
    found = greedy(toy, src, torch.tensor([0, 2, 5]), options)
    assert [len(h.tokens) for (h,) in found] == [3, 2, 2]


def test_a_hypothesis_that_ends_by_itself_at_the_limit_is_finished():
    toy = Toy(VOCAB, MAX_LEN)
    toy.logits[0, toy._code((4, 4)), EOS] = 50.0
    toy.logits[1, toy._code((4, 4)), EOS] = -50.0
    options = DecodingOptions(beam=1, max_len=2, prefix=[[4, 4], [4, 4]])
    found = greedy(toy, *sources(0, 1), options)
    assert [(h.tokens, h.finished) for (h,) in found] == [([4, 4], True), ([4, 4], False)]


@pytest.mark.parametrize("beam", [1, 3, EVERYTHING])
def test_forced_prefix(beam):
    toy = Toy(VOCAB, MAX_LEN)
    prefix = [[5, UNK], [], [6]]
    options = DecodingOptions(beam=beam, max_len=MAX_LEN, prefix=prefix, forbid_unknown=True)
    found = decode(toy, *sources(0, 1, 2), options)
    for source, (start, (hypothesis, *_)) in enumerate(zip(prefix, found, strict=True)):
        tokens = tuple(hypothesis.tokens)
        assert tokens[: len(start)] == tuple(start)
        assert UNK not in tokens[len(start) :]
        assert hypothesis.token_log_probs == pytest.approx(toy.terms(source, tokens))
        if beam == EVERYTHING:
            rest = [
                target
                for target in toy.all_targets()
                if target[: len(start)] == tuple(start) and UNK not in target[len(start) :]
            ]
            assert tokens == ranked(toy, source, 0.6, targets=rest)[0][1]


def test_maps_stay_with_their_hypotheses():
    toy = Toy(VOCAB, 5)
    src, lengths = sources(0, 1, 2, 3)
    lengths[2] = 3
    options = DecodingOptions(beam=4, nbest=4, max_len=5)
    for beam in (1, 4):
        options = DecodingOptions(beam=beam, nbest=beam, max_len=5)
        for source, row in enumerate(decode(toy, src, lengths, options, need_weights=True)):
            length = int(lengths[source])
            for h in row:
                (cross,) = h.attention["cross"]
                assert cross.shape == (2, len(h.tokens) + 1, length)
                torch.testing.assert_close(cross.mean(0), toy.look(source, tuple(h.tokens), length))


def test_force_decode_scores_by_hand():
    toy = Toy(VOCAB, MAX_LEN)
    targets = [[], [4, 6, 5], [3]]
    options = DecodingOptions(length_penalty=0.8)
    src, lengths = sources(1, 4, 6)
    lengths[0] = 3
    for source, length, target, h in zip(
        (1, 4, 6), (3, 5, 5), targets, force_decode(toy, src, lengths, targets, options),
        strict=True,
    ):  # fmt: skip
        assert h.tokens == target
        assert h.token_log_probs == pytest.approx(toy.terms(source, tuple(target)))
        assert h.score == pytest.approx(score_by_hand(toy, source, tuple(target), 0.8))
        torch.testing.assert_close(
            h.attention["cross"][0].mean(0), toy.look(source, tuple(target), length)
        )


@pytest.mark.parametrize("beam", [1, 3])
def test_logits_that_are_not_numbers_are_an_error(beam):
    toy = Toy(VOCAB, MAX_LEN)
    toy.logits[:] = float("nan")
    with pytest.raises(RegardError, match=r"NaN.*diverge"):
        decode(toy, *sources(0, 1), DecodingOptions(beam=beam, max_len=3))
