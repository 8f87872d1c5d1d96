import pytest
import torch
from torch import nn

from layers.tools import away_from_zero, close
from regard import ops
from regard.attention import (
    AdditiveAttention,
    MultiplicativeAttention,
    ScaledDotProductAttention,
)
from regard.layers import SelfAttentiveRNN

BATCH, LENGTH, INPUT, HIDDEN, SCORE = 5, 7, 3, 11, 13
LENGTHS = torch.tensor([7, 4, 0, 1, 5])

SCORERS = {
    "dot": lambda: MultiplicativeAttention(HIDDEN, HIDDEN, "dot"),
    "scaled": lambda: ScaledDotProductAttention(HIDDEN, HIDDEN, SCORE),
    "general": lambda: MultiplicativeAttention(HIDDEN, HIDDEN, "general"),
    "additive": lambda: AdditiveAttention(HIDDEN, HIDDEN, SCORE),
}
CELLS = ("rnn", "gru", "lstm")
each_cell = pytest.mark.parametrize("cell", CELLS)
each_scorer = pytest.mark.parametrize("scorer", SCORERS)
each_backend = pytest.mark.parametrize("backend", ["reference", "torch"])
each_mode = pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])


def build(cell, scorer="scaled", dtype=torch.float64):
    layer = SelfAttentiveRNN(INPUT, HIDDEN, cell=cell, attention=SCORERS[scorer]())
    return away_from_zero(layer).to(dtype)


def inputs(dtype=torch.float64, length=LENGTH):
    return torch.randn(BATCH, length, INPUT, dtype=dtype)


def tensors(output):
    """Everything that comes out, the history included."""
    state = output.state
    every = [*output[:3], state.context, state.hidden, state.keys, state.memory, state.real]
    return [t for t in every if t is not None]


def score_of(attention, name, query, key):
    """Each score from its formula, of (batch, hidden) and (batch, hidden)."""
    if name == "dot":
        return (query * key).sum(-1)
    if name == "general":
        return (query * (key @ attention.key_proj.weight.T)).sum(-1)
    q, k = query @ attention.query_proj.weight.T, key @ attention.key_proj.weight.T
    if name == "scaled":
        return (q * k).sum(-1) / SCORE**0.5
    return (torch.tanh(q + k) * attention.v).sum(-1)


def by_formula(layer, name, x, h_of):
    """h_t from x_t and c_{t-1}; scores of h_t with h_1 to h_t; c_t = sum_j a_j h_j."""
    c, hiddens, contexts, maps = x.new_zeros(len(x), HIDDEN), [], [], []
    for x_t in x.unbind(1):
        h = h_of(x_t, c)
        hiddens.append(h)
        scores = [score_of(layer.attention, name, h, h_j) for h_j in hiddens]
        a = torch.softmax(torch.stack(scores, dim=1), dim=1)
        c = sum(a[:, j, None] * h_j for j, h_j in enumerate(hiddens))
        contexts.append(c)
        maps.append(nn.functional.pad(a, (0, x.shape[1] - a.shape[1])))
    return torch.stack(hiddens, 1), torch.stack(contexts, 1), torch.stack(maps, 1)[:, None]


@each_scorer
@each_backend
@each_mode
def test_rnn_equals_the_formula(scorer, backend, grad):
    layer, x = build("rnn", scorer), inputs()
    A = torch.cat([layer.input_proj.weight, layer.recurrent_proj.weight], dim=1)
    with ops.use_backend(backend), torch.set_grad_enabled(grad):
        actual = layer(x, need_weights=True)
    expected = by_formula(
        layer,
        scorer,
        x,
        lambda x_t, c: torch.tanh(torch.cat([x_t, c], 1) @ A.T + layer.input_proj.bias),
    )
    close(actual[:3], expected)


@pytest.mark.sample(9)
@each_cell
@each_scorer
@each_mode
def test_steps_equal_the_whole_sequence(cell, scorer, grad):
    layer, x, state = build(cell, scorer), inputs(), None
    with torch.set_grad_enabled(grad):
        whole = layer(x, need_weights=True)
        for t, x_t in enumerate(x.unbind(1)):
            step = layer.step(x_t, state, need_weights=True)
            close(step.hidden, whole.hidden[:, t])
            close(step.context, whole.context[:, t])
            close(step.weights, whole.weights[..., t : t + 1, : t + 1])
            state = step.state
    close(tensors(step)[3:], tensors(whole)[3:])


@pytest.mark.sample(7)
@each_cell
@each_backend
@each_mode
def test_lengths(cell, backend, grad):
    layer, x = build(cell), inputs()
    with ops.use_backend(backend), torch.set_grad_enabled(grad):
        padded = layer(x, LENGTHS, need_weights=True)
        for row, n in enumerate(LENGTHS.tolist()):
            assert not padded.hidden[row, n:].any()
            assert not padded.context[row, n:].any()
            assert not padded.weights[row, :, n:].any()
            assert not padded.weights[row, ..., n:].any()
            assert padded.state.real[row].sum() == n
            if n:
                alone = layer(x[row : row + 1, :n], need_weights=True)
                close(padded.hidden[row, :n], alone.hidden[0])
                close(padded.context[row, :n], alone.context[0])
                close(padded.weights[row, :, :n, :n], alone.weights[0])
                close(padded.state.context[row], alone.state.context[0])
            else:
                assert not padded.state.context[row].any()
