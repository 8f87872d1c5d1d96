from collections import Counter

import pytest
import torch

from decoding.toys import Toy, sources
from regard.decoding import DecodingOptions, decode
from regard.decoding.candidates import draw
from regard.symbols import EOS

INF = float("inf")
VOCAB, DRAWS = 9, 4000
LOG_PROBS = torch.tensor([-9.0, -0.5, 1.0, -INF, 0.3, -2.0, 0.0, 2.0]).log_softmax(0)


def drawn(**options):
    rules = DecodingOptions(num_samples=1, **options)
    generator = torch.Generator().manual_seed(3)
    noise = torch.rand(DRAWS, 1, dtype=torch.double, generator=generator)
    return Counter(draw(LOG_PROBS.repeat(DRAWS, 1), rules, noise).flatten().tolist())


def probabilities(temperature=1.0):
    return dict(enumerate((LOG_PROBS / temperature).softmax(0).tolist()))


def assert_follows(counts, expected):
    """Chi-square, with seven degrees of freedom at most: above 24.3 one time in a thousand."""
    expected = {token: p for token, p in expected.items() if p}
    assert set(counts) <= set(expected)
    total = sum(expected.values())
    wanted = {token: DRAWS * p / total for token, p in expected.items()}
    assert sum((counts[t] - n) ** 2 / n for t, n in wanted.items()) < 24.3


def test_draws_follow_the_model():
    assert_follows(drawn(temperature=0.5), probabilities(0.5))


@pytest.mark.parametrize("top_k", [0, 3])
def test_a_temperature_may_be_as_low_or_as_high_as_numbers_go(top_k):
    best = int(LOG_PROBS.argmax())
    assert set(drawn(temperature=1e-300, top_k=top_k)) == {best}
    likely = LOG_PROBS.topk(top_k or 7).indices.tolist()
    assert_follows(drawn(temperature=1e300, top_k=top_k), dict.fromkeys(likely, 1.0))


@pytest.mark.slow
def test_whole_targets_are_drawn_by_their_probability():
    toy, draws = Toy(6, 2), 500
    (hypotheses,) = decode(toy, *sources(2), DecodingOptions(max_len=2, num_samples=draws, seed=1))
    counts = Counter(tuple(h.tokens) for h in hypotheses)
    # pad and bos are never drawn, and the limit ends a target for certain
    expected = {}
    for target in toy.all_targets():
        p = 1.0
        for place, token in enumerate((*target, EOS)[:2]):
            p *= toy.logits[2, toy._code(target[:place]), EOS:].softmax(0)[token - EOS].item()
        expected[target] = p
    assert sum(expected.values()) == pytest.approx(1)
    chi = sum((counts[t] - draws * p) ** 2 / (draws * p) for t, p in expected.items())
    assert chi < 32.9  # 12 degrees of freedom, one time in a thousand


def test_a_seed_makes_it_repeatable():
    toy = Toy(VOCAB, 3)

    def targets(seed):
        options = DecodingOptions(max_len=3, num_samples=20, seed=seed)
        return [h.tokens for h in decode(toy, *sources(0), options)[0]]

    state = torch.random.get_rng_state()
    assert targets(1) == targets(1) != targets(2)
    assert torch.equal(state, torch.random.get_rng_state())
    assert targets(None) != targets(None)
