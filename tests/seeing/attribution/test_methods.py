"""Each attribution method on regard's own models, against slow computations in float64."""

import numpy as np
import pytest
import torch

from models.cases import SRC_VOCAB, TGT_VOCAB, build
from regard.seeing.attribution import methods as attribution
from regard.seeing.attribution.input_scorer import (
    PrefixScorer,
    Question,
    SourceScorer,
    token_replacements,
)
from regard.seeing.attribution.methods import COMPLETENESS, METHODS, attribute
from seeing.attribution.test_scorers import SRC, TGT

LANGUAGE = ["lm-rnn", "lm-self-attentive", "lm-transformer"]
OTHERS = [*[range(4, SRC_VOCAB)] * 4, [2]]


def source_scorer(preset="transformer", model=None):
    model = build(preset).double() if model is None else model
    return SourceScorer(model, SRC, TGT, token_replacements(SRC, OTHERS))


def prefix_scorer(preset="lm-transformer", first=2):
    ids = [1, 6, 4, 12, 9, 7]
    unknown = token_replacements(ids, [[1], *[range(4, TGT_VOCAB)] * 5])
    return PrefixScorer(build(preset).double(), ids, [*ids[1:], 2][first:], unknown)


def value(scorer, vectors, question):
    with torch.no_grad():
        row = scorer.logits(vectors[None])[0, question.output].log_softmax(-1)
    return float(row[question.token] - (0 if question.versus is None else row[question.versus]))


@pytest.mark.parametrize(
    ("preset", "versus"), [("transformer", None), ("bahdanau", 8), ("lm-transformer", 8)]
)
def test_integrated_gradients_are_complete(preset, versus):
    scorer = prefix_scorer(preset) if preset in LANGUAGE else source_scorer(preset)
    questions = scorer.questions(versus)
    scores = attribution.integrated_gradients(scorer, questions)
    for q, question in enumerate(questions):
        change = value(scorer, scorer.vectors(), question) - value(
            scorer, scorer.baseline(), question
        )
        assert scores[q].sum() == pytest.approx(change, abs=COMPLETENESS * max(1, abs(change)))


def test_more_points_are_taken_where_few_do_not_suffice(monkeypatch):
    scorer = source_scorer()
    model = scorer.model
    with torch.no_grad():  # steep, so that a few points miss the change
        model.decoder.output.bias.zero_()
        for parameter in model.parameters():
            parameter.mul_(2.0)
    question = scorer.questions()[:1]
    change = value(scorer, scorer.vectors(), question[0]) - value(
        scorer, scorer.baseline(), question[0]
    )
    best = attribution.integrated_gradients(scorer, question).sum()
    monkeypatch.setattr(attribution, "PATH_POINTS", (2,))
    coarse = attribution.integrated_gradients(scorer, question).sum()
    assert abs(best - change) < 0.5 * abs(coarse - change)
    (note,) = attribute(scorer, question, "integrated-gradients").notes
    assert note.startswith("Integrated gradients of 1 of 1 outputs do not sum")


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.contrasts])
def test_a_contrast_is_linear_or_swaps_its_sign(name):
    # why a and not b is minus why b and not a; a norm has no sign
    scorer = source_scorer()
    one = METHODS[name].score(scorer, [Question(1, 6, 9)])
    other = METHODS[name].score(scorer, [Question(1, 9, 6)])
    is_norm = name == "gradient"
    np.testing.assert_allclose(one, other if is_norm else -other, atol=1e-9)
    assert abs(one).max() > 1e-6


@pytest.mark.sample(1)
@pytest.mark.parametrize("preset", ["bahdanau", "self-attentive", "transformer"])
def test_what_a_model_with_a_source_has_no_method_for_is_said(preset):
    scorer = source_scorer(preset)
    found = attribute(scorer, scorer.questions())
    expected = {"transformer": set()}.get(preset, {"rollout"})
    assert set(found.unavailable) == expected
    for name, scores in found.scores.items():
        assert scores.shape == (4, 5), name
        assert np.isfinite(scores).all(), name


@pytest.mark.parametrize("preset", LANGUAGE)
def test_no_output_of_a_language_model_depends_on_later_tokens(preset):
    scorer = prefix_scorer(preset)
    found = attribute(scorer, scorer.questions())
    assert ("attention" in found.unavailable) == (preset == "lm-rnn")
    # the first output is predicted from the third token that was read
    np.testing.assert_array_equal(scorer.visible(), np.tri(4, 6, 2, dtype=bool))
    for name, scores in found.scores.items():
        assert scores.shape == (4, 6), name
        np.testing.assert_allclose(scores[~scorer.visible()], 0, atol=1e-9, err_msg=name)
        assert abs(scores[scorer.visible()]).max() > 1e-6, name
