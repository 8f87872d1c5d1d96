"""Parts of a step of search by hand: constraints, candidates, endings, histories and padding."""

import math

import pytest
import torch

import shapes
from decoding.toys import Toy, sources
from ops.messages import refuses
from regard.decoding import DecodingOptions, decode, force_decode, stream
from regard.decoding.candidates import Constraints
from regard.errors import ArgumentError
from regard.symbols import EOS, PAD, UNK

NEVER = -math.inf
VOCAB = 9


def constraints(lengths=(3, 5), exact=None, positions=None, **options):
    return Constraints.of(
        DecodingOptions(**options),
        torch.tensor(lengths),
        None if exact is None else torch.tensor(exact),
        positions,
    )


def allowed(rules, step, history=None, log_probs=None):
    """The allowed tokens of each row, of one beam, and whether it was cut."""
    if log_probs is None:
        log_probs = torch.full((len(rules.limits), 1, VOCAB), -2.0)
        log_probs[..., 5], log_probs[..., EOS] = -1.0, -1.5
    past = None if history is None else torch.tensor(history)[:, None]
    found, cut = rules.allow(log_probs.clone(), step, past)
    tokens = [(row[0] > NEVER).nonzero().flatten().tolist() for row in found]
    assert torch.equal(found[found > NEVER], log_probs[found > NEVER]), "scores stay as they are"
    return tokens, None if cut is None else cut[:, 0].tolist()


WORDS = [4, 5, 6, 7, 8]


def test_limits_by_length():
    assert constraints(max_len_ratio=1.5, max_len_extra=2).limits.tolist() == [6, 9]
    assert constraints(max_len=4).limits.tolist() == [4, 4]
    assert constraints(max_len_ratio=0, max_len_extra=1, min_len=3).limits.tolist() == [3, 3]
    prefix = [[5] * 8, [6]]
    rules = constraints(max_len_ratio=0, max_len_extra=2, prefix=prefix)
    assert rules.limits.tolist() == [8, 2]
    assert (rules.shortest, rules.longest) == (2, 8)
    assert rules.prefix.tolist() == [[5] * 8, [6] + [PAD] * 7]
    assert constraints(prefix=[[], []]).prefix is None
    assert constraints(positions=7).limits.tolist() == [6, 6]
    assert constraints(exact=[2, 4]).limits.tolist() == [2, 4]
    assert constraints(exact=[2, 4], max_len=3).limits.tolist() == [2, 3]
    assert constraints(max_len=100_000).longest == 100_000


def test_ngrams_are_not_repeated():
    rules = constraints(max_len=9, no_repeat_ngram=2)
    tokens, _ = allowed(rules, 4, [[5, 6, 4, 5], [5, 6, 4, 7]])
    assert tokens == [[EOS, UNK, 4, 5, 7, 8], [EOS, UNK, *WORDS]]
    assert allowed(rules, 1, [[5], [6]])[0] == [[EOS, UNK, *WORDS]] * 2
    single = constraints(max_len=9, no_repeat_ngram=1)
    assert allowed(single, 1, [[5], [6]])[0] == [[EOS, UNK, 4, 6, 7, 8], [EOS, UNK, 4, 5, 7, 8]]
    assert (
        allowed(constraints(max_len=9, no_repeat_ngram=3), 2, [[5, 5], [5, 5]])[0]
        == [[EOS, UNK, *WORDS]] * 2
    )


def test_a_target_that_cannot_go_on_may_end():
    """Five tokens of the vocabulary are left; once all were used, the minimum does not count."""
    rules = constraints(max_len=9, min_len=9, no_repeat_ngram=1)
    words = [UNK, *WORDS]
    assert allowed(rules, 6, [words, words])[0] == [[EOS], [EOS]]
    assert allowed(rules, 5, [words[:5], words[:5]])[0] == [[8], [8]]
    # a target of known length repeats itself where nothing else is left
    known = constraints(exact=[9, 9], no_repeat_ngram=1)
    assert allowed(known, 5, [WORDS, WORDS])[0] == [WORDS, WORDS]


def test_wrong_batches_are_refused_before_the_model_runs():
    model, (src, lengths) = Toy(8, 2), sources(0, 1)
    calls = {
        "decode": lambda s, n: decode(model, s, n),
        "force_decode": lambda s, n: force_decode(model, s, n, [[5], [5]]),
        "stream": lambda s, n: next(stream(model, s, n)),
    }
    with shapes.unchecked():
        for name, call in calls.items():
            for wrong in (lengths[:1], lengths + 9):
                with pytest.raises(ArgumentError, match=r"^(src and lengths|lengths) must"):
                    call(src, wrong)
            with pytest.raises(ArgumentError, match=r"^src must"):
                call(src[0], lengths)
            assert model.rows_per_step == [], name
    with refuses("tgt", "have a target for each of the 2 sources", "a list of 1"):
        force_decode(model, src, lengths, [[5]])
    with refuses("prefix", "have a list of tokens for each of the 1 sources", "a list of 2"):
        decode(model, src[:1], lengths[:1], DecodingOptions(prefix=[[5], [5]]))
