"""Each mechanism must learn what it can, and must not learn what it cannot."""

import pytest
import torch

from examples.learn_to_reverse import (
    FIRST,
    Result,
    exact_match,
    next_symbol,
    reverse,
    sample,
    train,
)
from regard.models import PRESETS

pytestmark = pytest.mark.system

VOCAB = FIRST + 10


#: a quarter of what is tiny: they learn it as soon, in a quarter of the time
NARROW = {"transformer": {"dim": 32, "layers": 1}, "conv": {"dim": 64}}
SLENDER = {"hidden": 64}


def learn(preset: str, task, *, seed: int = 0, sizes=None, **options) -> Result:
    """Trains, and judges on samples of its own."""
    torch.manual_seed(seed)
    model = PRESETS[preset](VOCAB, VOCAB, "tiny", dropout=0.0, **(sizes or {}))
    result = train(model, task, **options)
    fresh = sample(1000, options.get("max_len", 8), task, min_len=options.get("min_len", 1))
    return result._replace(exact=exact_match(model, fresh))


@pytest.mark.parametrize(
    ("preset", "cell"),
    [
        # through the command line it learns to reverse in another test
        pytest.param("bahdanau", None, marks=pytest.mark.long),
        pytest.param("luong", None, marks=pytest.mark.long),
        pytest.param("rnn-dot", None, marks=pytest.mark.long),
        pytest.param("gnmt", None, marks=pytest.mark.long),
        pytest.param("self-attentive", "rnn", marks=pytest.mark.long),
        pytest.param("self-attentive", "gru", marks=pytest.mark.long),
        pytest.param("transformer", None, marks=pytest.mark.long),
        pytest.param("conv", None, marks=pytest.mark.long),
    ],
)
def test_attention_learns_to_reverse(preset, cell):
    rate = 3e-3 if preset == "conv" else 5e-3
    # those that have no order of their own take longest to find the way back
    longest = 3 if preset in NARROW else 4
    sizes = NARROW.get(preset, SLENDER) | ({"cell": cell} if cell else {})
    result = learn(preset, reverse, sizes=sizes, rate=rate, max_len=longest)
    print(f"{preset} {cell or ''}: {result}")
    assert result.exact >= 0.97


@pytest.mark.long
def test_word_by_word_learns_an_aligned_task():
    result = learn("rnn", next_symbol)
    print(f"rnn, aligned: {result}")
    assert result.exact >= 0.98


@pytest.mark.long
def test_the_bottleneck_learns_short_sequences():
    result = learn("seq2seq", reverse, max_len=4)
    print(f"seq2seq, up to 4: {result}")
    assert result.exact >= 0.98
