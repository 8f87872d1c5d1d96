"""Batches of few shapes, and that what fills them up does not count."""

import numpy as np
import pytest
import torch

from data.tools import make_corpus, make_pairs
from regard.data import BatchShape, collate
from regard.errors import ArgumentError
from regard.models import PRESETS
from regard.symbols import PAD
from regard.training.epochs import Epochs
from regard.training.losses import Objective

VOCAB = 300


def test_a_batch_has_its_shape_and_rows_that_are_missing_have_no_targets(tmp_path):
    corpus = make_corpus(tmp_path / "c.arrow", make_pairs(9))
    plain, batch = (
        collate(corpus, np.arange(5)),
        collate(corpus, np.arange(5), BatchShape(8, 40, 48)),
    )
    assert batch.src.shape == (8, 40)
    assert batch.tgt_in.shape == batch.tgt_out.shape == (8, 48)
    assert torch.equal(batch.src[:5, : plain.src.shape[1]], plain.src)
    assert torch.equal(batch.tgt_out[:5, : plain.tgt_out.shape[1]], plain.tgt_out)
    assert (batch.tgt_out[5:] == PAD).all()
    assert torch.equal(batch.src[5:], batch.src[:1].expand(3, -1))
    assert torch.equal(batch.tgt_places, torch.arange(8 * 48))


def test_batches_of_a_model_that_joins_both_sides_have_rows_of_one_length(tmp_path):
    corpus = make_corpus(tmp_path / "c.arrow", make_pairs(120))
    totals = corpus.src_lengths + corpus.tgt_lengths
    expected = np.sort(totals).reshape(-1, 8).max(axis=1)
    limits = {"max_tokens": None, "max_sentences": 8, "seed": 3}
    for number in range(3):
        _, batches = Epochs(corpus, **limits, joined=True)[number]
        found = [totals[batches[i]].max() for i in range(len(batches))]
        assert sorted(found) == expected.tolist()


def test_a_shape_without_room_is_refused(tmp_path):
    corpus = make_corpus(tmp_path / "c.arrow", make_pairs(9))
    with pytest.raises(ArgumentError, match="at least 5 rows, but it is 4"):
        collate(corpus, np.arange(5), BatchShape(4, 40, 48))


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("rdrop", [0.0, 2.0])
@pytest.mark.parametrize("preset", ["bahdanau", "transformer", "pointer", "monotonic", "memory"])
def test_what_fills_a_shape_counts_neither_in_the_loss_nor_in_the_gradient(preset, rdrop, tmp_path):
    corpus, rows = make_corpus(tmp_path / "c.arrow", make_pairs(7)), np.arange(7)
    options = {"coverage": 1.0} if preset == "pointer" else {}
    torch.manual_seed(3)
    model = PRESETS[preset](VOCAB, VOCAB, "tiny", dropout=0.0, **options).double()
    objective = Objective(model, 0.1, rdrop)
    found = []
    for shape in (None, BatchShape(12, 40, 48)):
        batch = collate(corpus, rows, shape)
        sides = (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out, batch.tgt_places)
        loss = objective(*sides, padded=shape is not None)
        found.append([loss, *torch.autograd.grad(loss, list(objective.parameters()))])
    for plain, padded in zip(*found, strict=True):
        torch.testing.assert_close(padded, plain, rtol=1e-9, atol=1e-9)
