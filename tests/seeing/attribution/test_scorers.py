"""What is found by running a model again, against slow computations of the same."""

import math

import numpy as np
import pytest
import torch

from models.cases import build
from regard.errors import ArgumentError
from regard.models import VectorInput, with_input
from regard.seeing.attribution import methods as attribution
from regard.seeing.attribution.input_scorer import (
    AttentionRecord,
    Replacements,
    SourceScorer,
    frame_replacements,
    token_replacements,
)
from regard.seeing.attribution.methods import attention_rollout

SRC, TGT = [5, 9, 4, 11, 2], [6, 4, 12]


def ablation(model, src, tgt, others):
    if not isinstance(others, Replacements):
        others = token_replacements(src, others)
    scorer = SourceScorer(model, src, tgt, others)
    return attribution.ablation(scorer, scorer.questions())


def source_scorer(model, src, tgt):
    frames = not isinstance(src, list)
    stack = model.encoder.embedding.stack if frames else 1
    unknown = (
        frame_replacements(src, stack) if frames else token_replacements(src, [[4]] * len(src))
    )
    return SourceScorer(model, src, tgt, unknown)


def gradient(model, src, tgt):
    scorer = source_scorer(model, src, tgt)
    return attribution.gradient(scorer, scorer.questions())


def rollout(cross, layers):
    return attention_rollout(AttentionRecord([cross[None]], layers, []))


def log_probs(model, src=SRC, tgt=TGT):
    model.eval()
    with torch.no_grad():
        out = model(torch.tensor([src]), torch.tensor([len(src)]), torch.tensor([[1, *tgt]]))
    table = out.logits[0].double().log_softmax(-1)
    return [table[t, token].item() for t, token in enumerate([*tgt, 2])]


def test_ablation_is_the_cost_of_not_knowing_an_input():
    model = build("bahdanau")
    choices = [[4, 5, 6], [7, 9], [4], [8, 10, 11, 12], [2]]
    found = ablation(model, SRC, TGT, choices)
    base = log_probs(model)
    for i, tokens in enumerate(choices):
        rows = [log_probs(model, [*SRC[:i], z, *SRC[i + 1 :]]) for z in tokens]
        for t in range(4):
            mean = sum(math.exp(row[t]) for row in rows) / len(rows)
            assert found[t, i] == pytest.approx(base[t] - math.log(mean), abs=1e-5)
    assert found.shape == (4, 5)
    np.testing.assert_allclose(found[:, [2, 4]], 0, atol=1e-6)  # nothing else could stand there


@pytest.mark.parametrize("others", [[[4]] * 4, [[4]] * 4 + [[]]])
def test_each_place_needs_something_to_stand_there(others):
    with pytest.raises(ArgumentError, match="others must have one token or more"):
        ablation(build("bahdanau"), SRC, TGT, others)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["bahdanau", "transformer"])
def test_the_gradient_is_that_of_a_small_change(preset):
    model = build(preset).double().eval()
    found = gradient(model, SRC, TGT)
    embedding = model.encoder.embedding
    change = 1e-6
    for i in (0, 3):
        slopes = np.zeros((4, embedding.dim))
        for k in range(embedding.dim):
            ends = []
            for sign in (1, -1):

                def move(module, inputs, output, sign=sign, i=i, k=k):
                    return output.index_put(
                        tuple(map(torch.tensor, (0, i, k))),
                        torch.tensor(sign * change).double(),
                        True,
                    )

                handle = embedding.register_forward_hook(move)
                ends.append(np.array(log_probs(model)))
                handle.remove()
            slopes[:, k] = (ends[0] - ends[1]) / (2 * change)
        np.testing.assert_allclose(found[:, i], np.linalg.norm(slopes, axis=1), rtol=1e-4)


def test_rollout_by_hand():
    # one layer: half of [[0, 1], [1, 0]] and half of the identity is a half everywhere
    swap = np.array([[[0.0, 1.0], [1.0, 0.0]]])
    cross = np.array([[0.9, 0.1], [0.2, 0.8]])
    np.testing.assert_allclose(rollout(cross, [swap]), [[0.5, 0.5], [0.5, 0.5]])
    # the layer above is applied first: [1, 0] goes to [3/4, 1/4] by the upper, then by the lower
    upper, lower = np.array([[[0.5, 0.5], [0, 1]]]), np.array([[[1, 0], [1, 0.0]]])
    np.testing.assert_allclose(rollout(np.array([[1.0, 0.0]]), [lower, upper]), [[0.875, 0.125]])


TABLE = np.random.default_rng(3).normal(size=(7, 5)).astype(np.float32)


def reads_frames(preset="bahdanau", stack=1):
    model = build(preset)
    encoder = model.encoder
    positions = getattr(encoder.embedding, "positions", None)
    adapter = VectorInput(5, encoder.input_size, positions=positions, stack=stack)
    return with_input(model, adapter).eval()


def frame_log_probs(model, table):
    with torch.no_grad():
        src, lengths = torch.from_numpy(table)[None], torch.tensor([len(table)])
        logits = model(src.to(next(model.parameters())), lengths, torch.tensor([[1, *TGT]])).logits
    rows = logits[0].double().log_softmax(-1)
    return np.array([rows[t, token].item() for t, token in enumerate([*TGT, 2])])


def moved(table, stack, place, other):
    """By hand: the frames of one place stand in another; the last may have fewer."""
    changed = table.copy()
    for k in range(stack):
        if place * stack + k < len(table):
            changed[place * stack + k] = table[other * stack + k]
    return changed


@pytest.mark.parametrize(
    ("stack", "others"),
    [
        (1, [[o for o in range(7) if o != place] for place in range(7)]),
        # the last place has one frame, so that its own cannot stand where two are needed
        (2, [[1, 2], [0, 2], [0, 1], [0, 1, 2]]),
        (4, [[0], [0]]),  # nothing else has four frames
    ],
)
def test_a_frame_is_not_known_where_others_of_the_source_stand_there(stack, others):
    model = reads_frames(stack=stack)
    found = ablation(model, TABLE, TGT, frame_replacements(TABLE, stack))
    base = frame_log_probs(model, TABLE)
    assert found.shape == (4, len(others))
    for place, several in enumerate(others):
        rows = [frame_log_probs(model, moved(TABLE, stack, place, other)) for other in several]
        cost = base - np.log(np.mean(np.exp(rows), axis=0))
        np.testing.assert_allclose(found[:, place], cost, atol=1e-5)
    if stack == 4:
        np.testing.assert_allclose(found[:, 0], 0, atol=1e-6)
        assert abs(found[:, 1]).max() > 1e-4
