"""Pairs with tables that were read once, and what tells them from others."""

import numpy as np
import pytest

from regard.data import Pair
from regard.data.encode_corpus import survey, write_frame_cache

DRAW = np.random.default_rng(3)


def table(frames, features=3):
    return DRAW.normal(size=(frames, features)).astype(np.float32)


def pairs():
    return [
        Pair("a.npy", "x y", 1, frames=table(2)),
        Pair("7 frames #1", "z", 3, ("zz", "é"), ("V", "PST"), table(7)),
        *(Pair(f"{i}.npy", "w", 4 + i, frames=table(1 + i % 5)) for i in range(11)),
    ]


def assert_same(found, given):
    found = list(found)
    assert [pair[:5] for pair in found] == [pair[:5] for pair in given]
    for one, other in zip(found, given, strict=True):
        assert one.frames.dtype == np.float32
        np.testing.assert_array_equal(one.frames, other.frames)


@pytest.mark.parametrize("chunk", [1, 4, 4096])
def test_pairs_come_back_as_often_as_they_are_asked_for(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("regard.data.pairs.CHUNK_PAIRS", chunk)
    given = pairs()
    kept = write_frame_cache(iter(given), tmp_path / "read.arrow")
    assert_same(kept, given)
    assert_same(kept, given)
    assert survey(kept) == survey(given)
    assert survey(kept).pairs == 13
