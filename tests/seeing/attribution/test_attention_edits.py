"""Weights that are set by hand: outputs are those that follow from them, computed otherwise."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.attention import AdditiveAttention, MultiHeadAttention
from regard.errors import ArgumentError
from regard.layers import SelfAttentiveRNN
from regard.masks import causal
from regard.seeing.attribution.interventions import (
    AttentionCell,
    EditedAttention,
    edited_attention,
    edited_scores,
)

near = pytest.approx

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def moved(row, column, weight):
    """A row of weights with one cell set, by the definition."""
    rest = row.copy()
    rest[column] = 0
    row = rest / rest.sum() * (1 - weight)
    row[column] = weight
    return row


def cell(row, column, weight, head=0, kind="cross", layer=0):
    return AttentionCell(kind, layer, head, row, column, weight)


def edited(module, *cells, own=False):
    return edited_attention([EditedAttention(module, cells, own)])


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_others_share_the_rest_in_proportion(weight):
    scores = torch.tensor([[0.3, -1.2, 2.0, 0.1, float("-inf")]])
    found = edited_scores(scores, {2: weight}).softmax(dim=-1)[0].numpy()
    expected = moved(scores.softmax(dim=-1)[0].numpy(), 2, weight)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_multi_head_attention_mixes_the_values_by_the_weights_that_are_set():
    torch.manual_seed(1)
    module = MultiHeadAttention(12, 3).eval()
    query, key = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    with torch.no_grad():
        plain = module(query, key, key)
        with edited(module, cell(4, 2, 0.8, head=1)):
            found = module(query, key, key)
        weights = plain.weights.numpy().copy()
        for row in weights:
            row[1, 4] = moved(row[1, 4], 2, 0.8)
        values = module.project_values(key).tensor
        expected = module.out_proj((torch.from_numpy(weights) @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(found.weights, torch.from_numpy(weights), **CLOSE)
    torch.testing.assert_close(found.context, expected, **CLOSE)
    assert not module._forward_hooks
    assert not module._forward_pre_hooks


def test_a_step_with_a_cache_is_the_row_that_it_would_be_all_at_once():
    torch.manual_seed(1)
    module = MultiHeadAttention(12, 3).eval()
    x, target = torch.randn(1, 6, 12), cell(4, 2, 0.8, head=None, kind="decoder-self")
    with torch.no_grad():
        with edited(module, target, own=True):
            whole = module(x, x, x, causal(6, 6)).context
        with edited(module, target, own=True):
            for _ in range(2):  # a second decoding counts from its beginning
                steps = [
                    module(x[:, t : t + 1], x[:, : t + 1], x[:, : t + 1]).context for t in range(6)
                ]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, **CLOSE)


def test_rows_of_cross_attention_are_counted_from_the_run_of_the_encoder():
    torch.manual_seed(1)
    module, encoder = AdditiveAttention(5, 7, 11).eval(), nn.Identity()
    query, key, value = torch.randn(1, 3, 5), torch.randn(1, 4, 7), torch.randn(1, 4, 13)
    target = EditedAttention(module, [cell(1, 3, 0.6)], own=False)
    with torch.no_grad(), edited_attention([target], [encoder]):
        for _ in range(2):
            encoder(key)
            steps = [module(query[:, t : t + 1], key, value).weights[0, 0, 0, 3] for t in range(3)]
            assert steps[1] == near(0.6)
            assert abs(steps[0] - 0.6) > 0.01


def test_additive_attention_mixes_the_values_by_the_weights_that_are_set():
    torch.manual_seed(1)
    module = AdditiveAttention(5, 7, 11).eval()
    query, key, value = torch.randn(1, 3, 5), torch.randn(1, 4, 7), torch.randn(1, 4, 13)
    with torch.no_grad():
        weights = module(query, key, value).weights[0, 0].numpy().copy()
        with edited(module, cell(1, 3, 0.6)):
            found = module(query, key, value)
    weights[1] = moved(weights[1], 3, 0.6)
    torch.testing.assert_close(found.context[0], torch.from_numpy(weights) @ value[0], **CLOSE)


def recurrence(module, x, row, column, weight):
    """`h_t = tanh(A [x_t, c_{t-1}] + b)`, and c_t by the weights, of which one is set."""
    score, context = module.attention.as_score(), x.new_zeros(1, module.hidden_size)
    hidden = []
    for t, given in enumerate(module.input_proj(x).unbind(dim=1)):
        gates = F.linear(context, module.recurrent_proj.weight)
        hidden.append(torch.tanh(given + gates))
        past = torch.stack(hidden, dim=1)
        weights = score.scores(score.query(hidden[-1]), score.key(past)).softmax(dim=-1)
        if t == row:
            weights = torch.from_numpy(moved(weights[0].numpy().copy(), column, weight))[None]
        context = (weights[:, None] @ past)[:, 0]
    return context


@pytest.mark.plain
def test_a_self_attentive_rnn_goes_on_from_the_weights_that_are_set():
    torch.manual_seed(1)
    # so many steps that another kernel would run them
    module, x = SelfAttentiveRNN(5, 7).eval(), torch.randn(1, 19, 5)
    with torch.no_grad():
        with edited(module, cell(17, 1, 0.9, kind="encoder-history"), own=True):
            found = module(x).context[:, -1]
        expected = recurrence(module, x, 17, 1, 0.9)
        plain = module(x).context[:, -1]
    torch.testing.assert_close(found, expected, **CLOSE)
    assert (found - plain).abs().max() > 1e-4


def test_rows_of_an_lstmn_are_counted_though_it_does_not_attend_to_itself():
    torch.manual_seed(1)
    module, x = SelfAttentiveRNN(5, 7, cell="lstm").eval(), torch.randn(1, 6, 5)
    with torch.no_grad():
        with edited(module, cell(3, 1, 0.9, kind="encoder-history"), own=True):
            both = [module(x, need_weights=True).weights[0, 0] for _ in range(2)]
        plain = module(x, need_weights=True).weights[0, 0]
    for found in both:
        assert found[3, 1] == near(0.9)
        torch.testing.assert_close(found[:3], plain[:3], **CLOSE)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([cell(1, 4, 0.5)], "column must be one that row 1 can attend to"),
        ([cell(1, 9, 0.5)], "column must be one that row 1 can attend to"),
        ([cell(2, 0, 0.7), cell(2, 1, 0.6)], "sum to at most 1 in a row"),
        ([cell(0, 0, 0.5)], "sum to 1 in a row"),
    ],
)
def test_a_cell_that_cannot_be_set_is_refused(cells, words):
    module, x = MultiHeadAttention(12, 3).eval(), torch.randn(1, 5, 12)
    with edited(module, *cells, own=True), pytest.raises(ArgumentError, match=words):
        module(x, x, x, causal(5, 5))
    assert not module._forward_hooks
    F.softmax(torch.zeros(1, 1, 1), dim=-1)  # no mode is left behind
