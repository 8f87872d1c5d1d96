"""Each attribution method on regard's own models, against slow computations in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from models.cases import SRC_VOCAB, TGT_VOCAB, build
from regard.seeing.attribution import methods as attribution
from regard.seeing.attribution.input_scorer import (
    PrefixScorer,
    Question,
    SourceScorer,
    token_replacements,
)
from regard.seeing.attribution.methods import COMPLETENESS, METHODS, attribute, relevance_rules
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
    assert note.startswith("integrated gradients of 1 of 1 outputs do not sum")


def test_gradient_times_input_leaves_positions_out():
    scorer = source_scorer()
    embedding = scorer.model.encoder.embedding
    tokens = (embedding.table(torch.tensor(SRC)) * embedding.scale).detach()
    question, size = Question(2, TGT[2]), 1e-6
    for i in (0, 3):
        effects = []
        for axis in range(tokens.shape[1]):
            moved = [scorer.vectors().clone() for _ in range(2)]
            moved[0][i, axis] += size * tokens[i, axis]
            moved[1][i, axis] -= size * tokens[i, axis]
            change = value(scorer, moved[0], question) - value(scorer, moved[1], question)
            effects.append(change / (2 * size))
        found = attribution.input_gradient(scorer, [question])[0, i]
        assert found == pytest.approx(np.linalg.norm(effects), rel=1e-5)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.contrasts])
def test_a_contrast_is_linear_or_swaps_its_sign(name):
    # why a and not b is minus why b and not a; a norm has no sign
    scorer = source_scorer()
    one = METHODS[name].score(scorer, [Question(1, 6, 9)])
    other = METHODS[name].score(scorer, [Question(1, 9, 6)])
    is_norm = name in ("gradient", "input-gradient")
    np.testing.assert_allclose(one, other if is_norm else -other, atol=1e-9)
    assert abs(one).max() > 1e-6


@pytest.mark.parametrize("kind", ["encoder", "language"])
def test_norms_by_a_loop_over_heads(kind):
    scorer = source_scorer() if kind == "encoder" else prefix_scorer()
    layers = [part for part in scorer.model.modules() if hasattr(part, "attention_residual")]
    layer = layers[0]
    found = scorer.attention()
    weights, part = found.own[0], layer.attention
    x = layer.attention_residual.before(scorer.vectors())
    values = part.value_proj(x).detach().numpy()
    matrix = part.out_proj.weight.detach().numpy()
    width = part.head_dim
    for i in (0, scorer.inputs - 1):
        for j in range(scorer.inputs):
            total = 0
            for head in range(part.num_heads):
                piece = slice(head * width, (head + 1) * width)
                total = total + weights[head, i, j] * matrix[:, piece] @ values[j, piece]
            assert found.own_norms[0][i, j] == pytest.approx(np.linalg.norm(total), abs=1e-9)


class Block(nn.Module):
    """A Transformer block without biases, whose relevance is computed by hand below."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        shapes = {"q": (5, 5), "k": (5, 5), "v": (5, 5), "o": (5, 5), "up": (7, 5), "down": (5, 7)}
        for name, shape in shapes.items():
            weight = torch.randn(shape, generator=generator, dtype=torch.float64)
            self.register_parameter(name, nn.Parameter(weight / 2))

    def forward(self, x):
        x_normed = nn.functional.layer_norm(x, (5,))
        q, k, v = (x_normed @ w.T for w in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        h = x + mixed @ self.o.T
        return h + nn.functional.gelu(h @ self.up.T) @ self.down.T


def test_relevance_by_hand():
    """The rules of the paper for one block, as relevance and not as gradients."""
    block = Block()
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    leaf = x[None].clone().requires_grad_()
    with relevance_rules(block):
        out = block(leaf)
        (slope,) = torch.autograd.grad(out[0, 1, 2], leaf)
    found = (slope[0] * x).detach().numpy()
    np.testing.assert_allclose(out.detach(), block(x[None]).detach(), atol=1e-12)

    w = {name: p.detach().numpy() for name, p in block.named_parameters()}
    x = x.numpy()
    centred = x - x.mean(axis=1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    n = centred / deviation
    q, k, v = (n @ w[name].T for name in "qkv")
    scores = q @ k.T / np.sqrt(5)
    a = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    mixed = a @ v
    h = x + mixed @ w["o"].T
    z = h @ w["up"].T
    act = torch.nn.functional.gelu(torch.tensor(z)).numpy()

    def linear(inputs, matrix, outputs, relevance):
        """The epsilon rule of y = W x without epsilon: shares of the contributions W_ij x_j."""
        return (relevance / outputs) @ matrix * inputs

    final = h + act @ w["down"].T
    total = np.zeros_like(final)
    total[1, 2] = final[1, 2]
    ffn = act @ w["down"].T
    r_ffn, r_h = total * ffn / final, total * h / final
    r_act = linear(act, w["down"], ffn, r_ffn)
    r_h = r_h + linear(h, w["up"], z, r_act)  # the identity rule of the activation
    proj = mixed @ w["o"].T
    r_proj, r_x = r_h * proj / h, r_h * x / h
    r_mixed = linear(mixed, w["o"], proj, r_proj)
    r_v, r_a = np.zeros_like(v), np.zeros_like(a)
    for i, j, d in np.ndindex(3, 3, 5):  # the uniform rule of a product
        part = 0.5 * a[i, j] * v[j, d] * r_mixed[i, d] / mixed[i, d]
        r_v[j, d] += part
        r_a[i, j] += part
    r_s = scores * (r_a - a * r_a.sum(axis=1, keepdims=True))  # the softmax, proposition 3.1
    r_q, r_k = np.zeros_like(q), np.zeros_like(k)
    for i, j, d in np.ndindex(3, 3, 5):
        part = 0.5 * q[i, d] * k[j, d] / np.sqrt(5) * r_s[i, j] / scores[i, j]
        r_q[i, d] += part
        r_k[j, d] += part
    parts = zip("qkv", (q, k, v), (r_q, r_k, r_v), strict=True)
    r_n = sum(linear(n, w[name], y, r) for name, y, r in parts)
    # the norm: the mean is subtracted by a linear map, the deviation is a constant
    mean = np.eye(5) - 1 / 5
    r_x = r_x + linear(x, mean, centred, r_n)
    np.testing.assert_allclose(found, r_x, atol=1e-9)


@pytest.mark.sample(1)
@pytest.mark.parametrize("preset", ["bahdanau", "self-attentive", "transformer"])
def test_what_a_model_with_a_source_has_no_method_for_is_said(preset):
    scorer = source_scorer(preset)
    found = attribute(scorer, scorer.questions())
    expected = {"transformer": set()}.get(preset, {"relevance", "rollout"})
    assert set(found.unavailable) == expected
    for name, scores in found.scores.items():
        assert scores.shape == (4, 5), name
        assert np.isfinite(scores).all(), name


@pytest.mark.parametrize("preset", LANGUAGE)
def test_no_output_of_a_language_model_depends_on_later_tokens(preset):
    scorer = prefix_scorer(preset)
    found = attribute(scorer, scorer.questions())
    assert ("attention" in found.unavailable) == (preset == "lm-rnn")
    assert ("relevance" in found.unavailable) == (preset != "lm-transformer")
    # the first output is predicted from the third token that was read
    np.testing.assert_array_equal(scorer.visible(), np.tri(4, 6, 2, dtype=bool))
    for name, scores in found.scores.items():
        assert scores.shape == (4, 6), name
        np.testing.assert_allclose(scores[~scorer.visible()], 0, atol=1e-9, err_msg=name)
        assert abs(scores[scorer.visible()]).max() > 1e-6, name
