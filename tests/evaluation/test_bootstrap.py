import numpy as np
import pytest

from evaluation.test_metrics import GOLD, NAMES, SEVERAL, SYSTEM
from regard.evaluation import confidence_interval, paired_bootstrap, paired_perplexity, score
from regard.evaluation.bootstrap import ratio_differences, ratio_interval

RIGHT, WRONG = "a", "b"


#: but for ROUGE, whose package takes seconds to load
NAMES = [name for name in NAMES if not name.startswith("rouge")]


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", sorted({*NAMES} - {"macro-f1", "span-f1"}))  # of no sentences
def test_an_interval_is_around_the_score(name):
    system, gold = SYSTEM * 9, SEVERAL * 9
    interval = confidence_interval(name, system, gold)
    assert interval.value == pytest.approx(score(name, system, gold).value)
    assert interval.low < interval.value < interval.high


@pytest.mark.parametrize(("n", "low"), [(5, 0.566), (10, 0.722), (1878, 0.998)])
def test_a_share_of_0_or_1_has_wilsons_interval(n, low):
    # by hand: n / (n + z**2), z = 1.96
    interval = confidence_interval("exact", [RIGHT] * n, [RIGHT] * n)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=5e-4), 1)
    interval = confidence_interval("exact", [WRONG] * n, [RIGHT] * n)
    assert (interval.low, interval.high) == (0, pytest.approx(1 - low, abs=5e-4))


@pytest.mark.parametrize("name", ["exact", "bleu", "cer", "macro-f1"])
@pytest.mark.parametrize("n", range(1, 5))
def test_fewer_than_five_sentences_have_no_interval_and_no_test(name, n):
    interval = confidence_interval(name, SYSTEM[:n], GOLD[:n])
    assert interval.value == score(name, SYSTEM[:n], GOLD[:n]).value
    assert (interval.low, interval.high) == (None, None)
    found = paired_bootstrap(name, SYSTEM[:n], GOLD[:n], GOLD[:n])
    assert (found.low, found.high, found.wins, found.p_value) == (None,) * 4
    assert ratio_interval(np.ones((n, 2))) == (None, None)
    assert ratio_differences(np.ones((n, 2)), [np.arange(2 * n).reshape(n, 2) + 1.0])[0][1] is None


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", NAMES)
def test_the_paired_bootstrap_is_symmetric(name):
    other = ["the cat sat", "there is a cat on the mat", "dogs", "nothing", "it is raining ."]
    ahead = paired_bootstrap(name, SYSTEM * 4, other * 4, GOLD * 4)
    back = paired_bootstrap(name, other * 4, SYSTEM * 4, GOLD * 4)
    assert (ahead.first, ahead.second) == (back.second, back.first)
    assert ahead.first == pytest.approx(score(name, SYSTEM, GOLD).value)
    assert ahead.wins == pytest.approx(1 - back.wins)
    assert ahead.p_value == back.p_value
    if ahead.low is None:
        assert name in ("macro-f1", "span-f1")  # of sentences, none of which is like another
        assert (back.low, back.high) == (None, None)
    else:
        assert (ahead.low, ahead.high) == pytest.approx((-back.high, -back.low))


def test_paired_perplexity_by_hand():
    """The same nats for half of the texts, and one nat per token less for the other half."""
    first = np.array([[8.0, 4.0]] * 20 + [[8.0, 4.0]] * 20)
    second = np.array([[8.0, 4.0]] * 20 + [[4.0, 4.0]] * 20)
    found = paired_perplexity("perplexity", first, second)
    assert found.first == pytest.approx(np.exp(2.0))
    assert found.second == pytest.approx(np.exp(1.5))
    assert found.low < found.first - found.second < found.high
    assert found.wins == 0
    turned = paired_perplexity("perplexity", second, first)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))
    assert turned.wins == 1
