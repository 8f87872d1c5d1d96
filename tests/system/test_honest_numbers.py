"""On a task whose alignment is known, attention must be where the truth is, and must matter."""

import random
from statistics import mean

import pytest

import regard
from regard.api.word_alignment import HeadChoice, Units, align
from regard.data import Pair
from regard.seeing.trace.view import Gold, Quality, diagonal, uniform_quality

pytestmark = pytest.mark.system


def words(count, seed):
    chance = random.Random(seed)
    return [chance.choices("abcdefghij", k=chance.randint(3, 5)) for _ in range(count)]


@pytest.fixture(scope="module")
def model():
    pairs = [(" ".join(word), " ".join(word[::-1])) for word in words(2000, seed=1)]
    sizes = {"size": "tiny", "hidden": 64, "embed": 32, "dropout": 0.0}
    return regard.fit(
        pairs,
        "bahdanau",
        quiet=True,
        steps=400,
        batch_sentences=32,
        lr=4e-3,
        eval_every=400,
        **sizes,
    )


def test_links_of_a_reversal_are_found(model):
    fresh = words(200, seed=2)
    pairs = [Pair(" ".join(word), " ".join(word[::-1]), 1) for word in fresh]
    truth = [frozenset((i, len(word) - 1 - i) for i in range(len(word))) for word in fresh]
    golds, sizes = [Gold(links, links) for links in truth], [(len(word),) * 2 for word in fresh]
    choice = HeadChoice(0, 0, 0)
    units = Units.of(model.task, None)
    found = align(model.predictor, pairs, lambda heads: [choice], units=units)[choice]
    rates = {
        "attention": Quality.of(found, golds).aer,
        "uniform": uniform_quality(golds, sizes).aer,
        "diagonal": Quality.of([diagonal(*size) for size in sizes], golds).aer,
    }
    print({name: f"AER {100 * rate:.1f}" for name, rate in rates.items()})
    assert rates["attention"] < 0.05
    assert min(rates["uniform"], rates["diagonal"]) > 0.6


@pytest.fixture(scope="module")
def checks(model):
    return [
        model.check(" ".join(word), methods="attention,gradient").checks
        for word in words(20, seed=3)
    ]


def test_what_is_looked_at_is_what_matters(checks):
    gains = [one["faithfulness"]["attention"]["gain"] for one in checks]
    print(f"gain {mean(gains):.3f}, at least {min(gains):.3f}")
    assert mean(gains) > 0.3
    assert min(gains) > 0


def test_shuffling_attention_destroys_the_answer(checks):
    right = mean(one["shuffled_text"] == one["greedy_text"] for one in checks)
    assert right == 0
