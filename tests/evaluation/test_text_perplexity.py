import math

import pytest
import torch

from regard.data import Tokenizer
from regard.evaluation import perplexity
from regard.models import ModelOutput, SequenceModel
from regard.symbols import BOS, EOS

TOKENIZER = Tokenizer.train("space", ["a b", "b c"])
A, B = (TOKENIZER.encode(letter)[0] for letter in "ab")


class Bigrams(SequenceModel):
    """Scores a token by the one before it alone, from a table."""

    def __init__(self, probabilities):
        super().__init__()
        self.table = torch.nn.Parameter(torch.log(probabilities))

    def encode(self, *args, **options):
        raise NotImplementedError

    start = step = encode

    def forward(self, src, lengths, tgt, *, keep=None, need_weights=False):
        assert src.tolist() == [[EOS]] * len(tgt)
        logits = self.table[tgt] + 5.0  # what all logits have in common cancels
        return ModelOutput(logits if keep is None else logits[keep], {})


def table(**changes):
    size = TOKENIZER.vocab_size
    probabilities = torch.full((size, size), 1 / size)
    for (before, after), value in changes.get("entries", {}).items():
        rest = [i for i in range(size) if i != after]
        probabilities[before, after] = value
        probabilities[before, rest] = (1 - value) / len(rest)
    return probabilities


def test_it_is_the_inverse_of_the_mean_probability_by_hand():
    entries = {(BOS, A): 0.5, (A, B): 0.25, (B, EOS): 0.125}
    model = Bigrams(table(entries=entries))
    found = perplexity(model, TOKENIZER, ["a b", "a b"])
    each = 0.5 * 0.25 * 0.125
    assert (found.texts, found.tokens, found.words, found.unknown) == (2, 6, 6, 0)
    assert found.value == pytest.approx(each ** (-1 / 3), rel=1e-5)
    assert found.nats == pytest.approx(-2 * math.log(each), rel=1e-5)


@pytest.mark.parametrize("context", [6, 7, 100])
def test_each_text_is_scored_once_after_those_before_it(context):
    entries = {(BOS, A): 0.5, (EOS, A): 0.75, (A, B): 0.25, (B, EOS): 0.125}
    model = Bigrams(table(entries=entries))
    lengths = []
    model.register_forward_pre_hook(lambda _, args: lengths.append(args[2].shape[1]))
    found = perplexity(model, TOKENIZER, ["a b"] * 41, context)
    first, later = (start * 0.25 * 0.125 for start in (0.5, 0.75))
    expected = [-math.log(first)] + [-math.log(later)] * 40
    assert found.each[:, 0] == pytest.approx(expected, rel=1e-5)
    assert (found.tokens, max(lengths)) == (123, context // 3 * 3)
    perplexity(model, TOKENIZER, ["a", "a b a b a b a b", "b"], 6)
    assert lengths[-1] == 9  # the line that is longer than the context is read alone


def test_the_interval_holds_what_other_texts_would_give():
    entries = {(BOS, A): 0.9, (A, EOS): 0.9, (BOS, B): 0.05, (B, EOS): 0.5}
    model = Bigrams(table(entries=entries))
    found = perplexity(model, TOKENIZER, ["a", "b"] * 100)
    low, high = found.interval()
    assert low < found.value < high
    # the mean of 200 draws of one of two losses, by the normal distribution
    losses = found.each[:2, 0] / 2
    spread = 1.96 * abs(losses[0] - losses[1]) / 2 / math.sqrt(200)
    assert math.log(high / low) == pytest.approx(2 * spread, rel=0.1)
    alike = perplexity(model, TOKENIZER, ["a"] * 5)
    assert alike.interval() == alike.interval(per_word=True) == (None, None)
