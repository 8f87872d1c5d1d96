import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.tools import make_corpus, make_pairs
from regard.data import BatchPlan, collate
from regard.symbols import BOS, EOS, PAD


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus") / "c.arrow", make_pairs(60))


@given(st.data())
def test_rows_by_loops(corpus, data):
    rows = np.array(data.draw(st.lists(st.integers(0, 59), min_size=1, max_size=9)))
    batch = collate(corpus, rows)
    for i, row in enumerate(rows):
        src, tgt = corpus.src(row).tolist(), corpus.tgt(row).tolist()
        assert batch.src[i].tolist() == src + [PAD] * (batch.src.shape[1] - len(src))
        after = [PAD] * (batch.tgt_in.shape[1] - len(tgt) - 1)
        assert batch.tgt_in[i].tolist() == [BOS, *tgt, *after]
        assert batch.tgt_out[i].tolist() == [*tgt, EOS, *after]
        assert (batch.src_lengths[i], batch.tgt_lengths[i]) == (len(src), len(tgt) + 1)
    assert batch.src.shape[1] == batch.src_lengths.max()
    assert batch.tgt_in.shape[1] == batch.tgt_lengths.max()
    said = [token for row in batch.tgt_out.tolist() for token in row if token != PAD]
    assert batch.tgt_out.flatten()[batch.tgt_places].tolist() == said
    assert {part.dtype for part in batch[:-2]} == {torch.int64}
    assert batch.rows.tolist() == rows.tolist()


def test_tokens_are_those_of_the_plan(corpus):
    batches = BatchPlan(corpus.src_lengths, corpus.tgt_lengths, max_tokens=50).epoch(0)
    collated = [collate(corpus, rows) for rows in batches]
    real = sum(batch.tokens for batch in collated)
    padded = sum(batch.src.numel() + batch.tgt_in.numel() for batch in collated)
    assert real == corpus.src_lengths.sum() + corpus.tgt_lengths.sum() + len(corpus)
    assert batches.padding_share == pytest.approx(1 - real / padded)
    assert all(batch.src.numel() + batch.tgt_in.numel() <= 50 for batch in collated)
