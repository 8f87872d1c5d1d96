"""Attention that is shuffled, against weights that are moved by hand."""

import pytest
import torch

from models.cases import build
from regard.seeing.attribution import interventions as shuffling
from regard.seeing.attribution.interventions import shuffled_attention
from seeing.attribution.test_scorers import (
    SRC,
    log_probs,
)


def test_what_is_copied_is_shuffled_with_what_is_mixed():
    model = build("pointer").eval()
    src, lengths = torch.tensor([SRC]), torch.tensor([5])
    plain = model.encode(src, lengths)
    with shuffled_attention(model):
        moved = model.encode(src, lengths)
    places = [plain.output[0].eq(row).all(dim=1).nonzero().item() for row in moved.output[0]]
    assert all(place != i for i, place in enumerate(places))
    assert moved.tokens[0].tolist() == [SRC[place] for place in places]


def test_shuffling_values_is_shuffling_weights():
    # the same as weights that are moved by hand, in the order that the values were
    model = build("rnn-dot").eval()
    attention, orders = model.decoder.attention, []
    cycle = shuffling._cycle

    def remember(*args):
        orders.append(cycle(*args))
        return orders[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffling, "_cycle", remember)
        with shuffled_attention(model):
            moved_logs = log_probs(model)
    plain_forward = attention.forward

    def by_hand(query, key, value, mask=None, *, past=None, need_weights=True):
        out = plain_forward(query, key, value, mask, past=past, need_weights=True)
        moved = torch.zeros_like(out.weights)
        moved[..., orders[0]] = out.weights  # the weight of key i goes to the value at order[i]
        return out._replace(context=(moved[:, 0] @ value))

    attention.forward = by_hand
    assert log_probs(model) == pytest.approx(moved_logs, abs=1e-6)
