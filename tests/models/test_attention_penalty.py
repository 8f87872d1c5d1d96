"""Losses on attention weights."""

import math

import pytest
import torch

from regard.models import PRESETS
from regard.models.decoders import AttentionPenalty

TOKENS = torch.tensor([[1, 5, 6, 7], [1, 5, 0, 0]])


def weights(rows):
    return torch.tensor(rows)[:, None]  # one head


def test_attention_is_drawn_to_where_the_next_token_looks():
    rows = [
        [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]],
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]],
    ]
    found = AttentionPenalty(look_ahead=2.0)(TOKENS, weights(rows))
    # steps 0 and 1 of the first row; the third writes the last token, and the next one eos. The
    # second row has one token, of which the next step writes eos
    assert found.tolist() == [[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]


def test_the_next_token_does_not_move_for_it():
    given = weights([[[0.6, 0.4], [0.3, 0.7], [0.9, 0.1], [0.5, 0.5]]]).requires_grad_()
    AttentionPenalty(look_ahead=1.0)(TOKENS[:1], given).sum().backward()
    assert given.grad[0, 0, 0].tolist() == [0.5, -0.5]
    assert given.grad[0, 0, 1].tolist() == [-0.5, 0.5]
    assert not given.grad[0, 0, 2:].any()


def test_entropy_is_that_of_each_step():
    rows = [[[0.5, 0.5], [1.0, 0.0], [0.25, 0.75], [1.0, 0.0]]]
    found = AttentionPenalty(entropy=3.0)(TOKENS[:1], weights(rows))
    third = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert found[0].tolist() == pytest.approx([3 * math.log(2), 0.0, 3 * third, 0.0], abs=1e-6)


def test_a_decoder_is_taught_in_training_alone():
    sizes = {"embed": 5, "hidden": 6, "layers": 1, "dropout": 0.0}
    torch.manual_seed(0)
    plain = PRESETS["show-attend-tell"](9, 11, "tiny", **sizes)
    taught = PRESETS["show-attend-tell"](9, 11, "tiny", **sizes, look_ahead=0.7, entropy=0.2)
    taught.load_state_dict(plain.state_dict())
    src, lengths, tgt = torch.randint(4, 9, (2, 7)), torch.tensor([7, 3]), TOKENS.clamp(max=10)
    found = taught(src, lengths, tgt)
    seen = taught(src, lengths, tgt, need_weights=True).maps["cross"][0]
    expected = AttentionPenalty(0.7, 0.2)(tgt, seen)
    assert torch.allclose(found.penalty, expected)
    assert found.maps == {}
    kept = taught(src, lengths, tgt, keep=torch.tensor([0, 2, 5])).penalty
    assert torch.allclose(kept, expected.flatten()[[0, 2, 5]])
    assert torch.equal(found.logits, plain(src, lengths, tgt).logits)
    assert plain(src, lengths, tgt).penalty is None
    assert taught.eval()(src, lengths, tgt).penalty is None
