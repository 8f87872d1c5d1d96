"""Faithfulness of a model whose inputs matter as planned, so that every measure is known."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from models.cases import SRC_VOCAB, build
from regard.models.protocol import ModelOutput, SequenceModel
from regard.seeing import Text, Trace
from regard.seeing.attribution.faithfulness import (
    Measures,
    add_methods,
    add_scores,
    measure,
    summarize,
)
from regard.seeing.attribution.input_scorer import Question, SourceScorer, token_replacements

SRC = [5, 6, 7, 8]


class Votes(SequenceModel):
    """Writes token 4 the likelier, the more of its first two inputs are there.

    The probability is 0.8 with both, 0.5 with the first alone, 0.3 with the second alone, else 0.1.
    """

    PROBS = ((0.1, 0.3), (0.5, 0.8))

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def encode(self, src, lengths, *, need_weights=False):
        raise NotImplementedError

    def start(self, memory):
        raise NotImplementedError

    def step(self, tokens, state, *, need_weights=False):
        raise NotImplementedError

    def forward(self, src, lengths, tgt, *, keep=None, need_weights=False):
        probs = [self.PROBS[int(row[0] == 5)][int(row[1] == 6)] for row in src]
        rest = torch.tensor(probs)[:, None]
        table = torch.cat([(1 - rest) / 4] * 4 + [rest], dim=1)
        return ModelOutput(table.log()[:, None].expand(-1, tgt.shape[1], -1), {})


def scorer(others=((1,), (1,), (1,), (1,))):
    # two choices, but always a 1 is drawn: token 1 twice
    unknown = token_replacements(SRC, [[*ids, *ids] for ids in others])
    return SourceScorer(Votes(), SRC, [], unknown)


QUESTION = [Question(0, 4)]


def judged(scores, **options):
    found = measure(scorer(), QUESTION, {"m": np.array([scores])}, **options)
    return Measures(*found["m"][0])


def test_measures_by_hand():
    found = judged([4.0, 3.0, 2.0, 1.0])
    # 1, 5, 10 and 20% of four inputs are one, 50% are two
    assert found.comprehensiveness == pytest.approx(0.8 - (4 * 0.3 + 0.1) / 5)
    assert found.sufficiency == pytest.approx(0.8 - (4 * 0.5 + 0.8) / 5)
    # with 0 to 4 inputs gone: 0.8 0.3 0.1 0.1 0.1; with 0 to 4 put back: 0.1 0.5 0.8 0.8 0.8
    assert found.deletion == pytest.approx((0.8 / 2 + 0.3 + 0.1 + 0.1 + 0.1 / 2) / 4)
    assert found.insertion == pytest.approx((0.1 / 2 + 0.5 + 0.8 + 0.8 + 0.8 / 2) / 4)
    assert found.gain == pytest.approx(found.insertion - found.deletion)


def test_a_contrast_is_judged_by_the_odds_of_two_tokens():
    found = measure(scorer(), [Question(0, 4, 3)], {"m": np.array([[4.0, 3.0, 2.0, 1.0]])})
    odds = [p / (p + (1 - p) / 4) for p in (0.8, 0.3, 0.1, 0.1, 0.1)]
    expected = (odds[0] / 2 + sum(odds[1:4]) + odds[4] / 2) / 4
    assert Measures(*found["m"][0]).deletion == pytest.approx(expected, abs=1e-6)


def test_inputs_that_cannot_be_replaced_are_not_judged():
    fixed = SourceScorer(Votes(), SRC, [], token_replacements(SRC, [[5], [1, 1], [1, 1], [8]]))
    found = measure(fixed, QUESTION, {"m": np.array([[1.0, 9.0, 2.0, 3.0]])})
    # of two inputs, the second of all is taken away first: 0.8 0.5 0.5
    assert Measures(*found["m"][0]).deletion == pytest.approx(0.8 / 4 + 0.5 / 2 + 0.5 / 4)
    nothing = SourceScorer(Votes(), SRC, [], token_replacements(SRC, [[i] for i in SRC]))
    assert np.isnan(measure(nothing, QUESTION, {"m": np.zeros((1, 4))})["m"]).all()


def test_intervals_are_over_texts_and_of_one_text_over_outputs():
    table = np.arange(25.0).reshape(5, 5)
    one = summarize([{"m": table}])["m"]
    assert one.gain.mean == pytest.approx(table[:, 4].mean())
    assert table[:, 4].min() <= one.gain.low < one.gain.high <= table[:, 4].max()
    several = summarize([{"m": table + 100 * i} for i in range(5)])["m"]
    assert several.gain.mean == pytest.approx(table[:, 4].mean() + 200)
    assert table[:, 4].mean() < several.gain.low < several.gain.mean < several.gain.high
    few = summarize([{"m": table[:4]}])["m"], summarize([{"m": table}] * 4)["m"]
    assert all(math.isnan(end) for one in few for end in one.gain[1:])
    gone = summarize([{"m": np.full((2, 5), np.nan)}])["m"]
    assert math.isnan(gone.gain.mean)


def test_a_trace_gets_scores_measures_and_sentences():
    source, target = Text.of(["a", "b", "c", "d"]), Text.of(["x"])
    found = add_methods(Trace(source, target), scorer(), "ablation")
    assert found.derived["ablation"].shape == (1, 4)
    numbers = found.checks["faithfulness"]
    assert set(numbers) == {"ablation", "random"}
    assert numbers["ablation"]["gain_low"] is None  # any draw of the replacements is the same
    said, doubt = found.checks["sentences"][:2]
    assert said.startswith("Most faithful here: ablation, with a gain of 0.")
    assert "(no interval)" in said
    assert doubt == "Not clearly better than a random order: ablation."
    named = add_methods(Trace(source, target), scorer(), "ablation", (3, "z"))
    assert set(named.derived) == {"ablation versus z"}
    assert named.checks["versus"] == "z"


@pytest.mark.parametrize(
    ("preset", "missing"),
    [("bahdanau", {"rollout"}), ("transformer", set()), ("seq2seq", {"attention", "rollout"})],
)
def test_scores_alone_take_no_measures_and_say_what_there_is_not(preset, missing):
    src, tgt = [5, 9, 4, 11, 2], [6, 4, 12]
    unknown = token_replacements(src, [*[range(4, SRC_VOCAB)] * (len(src) - 1), [2]])
    texts = [Text.of([*letters, "</s>"]) for letters in ("abcd", "xyz")]
    found = add_scores(Trace(*texts), SourceScorer(build(preset), src, tgt, unknown))
    wanted = {"attention", "ablation", "gradient", "rollout"} - missing
    assert set(found.derived) == wanted
    assert all(one.shape == (4, 5) and np.isfinite(one).all() for one in found.derived.values())
    np.testing.assert_allclose(found.derived["ablation"][:, 4], 0, atol=1e-6)
    assert set(found.checks) == {"sentences"}
    assert len(found.checks["sentences"]) == len(missing)
