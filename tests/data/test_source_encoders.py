"""What a run keeps of vectors, and vectors in a corpus and in batches."""

import json

import numpy as np
import pytest

from regard.data import (
    FrameScaler,
    Pair,
    Tokenizer,
    build_corpus,
)
from regard.errors import DataError
from regard.tasks import load_encoder


def tables(count, features=3, seed=1):
    draw = np.random.default_rng(seed)
    return [
        draw.normal(size=(draw.integers(1, 8), features)).astype(np.float32) for _ in range(count)
    ]


def pairs_of(given):
    targets = [" ".join(str(k % 10) for k in range(i % 5 + 1)) for i in range(len(given))]
    return [
        Pair(f"s{i}", t, i + 1, frames=table)
        for i, (table, t) in enumerate(zip(given, targets, strict=True))
    ]


def made(path, given, *, stack=1, **options):
    pairs = pairs_of(given)
    frames = FrameScaler.measure(given, stack=stack)
    target = Tokenizer.train("space", (pair.tgt for pair in pairs))
    options = {"max_src_len": 100, "max_tgt_len": 100} | options
    return frames, build_corpus(pairs, frames, target, path, **options)


def test_mean_and_deviation_by_hand():
    first = np.array([[1.0, 7.0, -2.0], [3.0, 7.0, 2.0]], np.float32)
    second = np.array([[5.0, 7.0, 0.0]], np.float32)
    found = FrameScaler.measure(iter([first, second]), stack=2)
    assert (found.features, found.stack) == (3, 2)
    np.testing.assert_allclose(found.mean, [3.0, 7.0, 0.0], atol=1e-15)
    # deviations are of all frames: sqrt((4 + 0 + 4) / 3); the second never changes
    np.testing.assert_allclose(found.scale, [(8 / 3) ** 0.5, 1.0, (8 / 3) ** 0.5])
    np.testing.assert_allclose(
        found.encode(first), [[-(1.5**0.5), 0.0, -(1.5**0.5)], [0.0, 0.0, 1.5**0.5]], rtol=1e-6
    )
    assert found.encode(first).dtype == np.float32


def test_statistics_are_right_far_from_zero():
    draw = np.random.default_rng(2)
    far = [(1e7 + draw.integers(-3, 4, size=(50, 2))).astype(np.float32) for _ in range(40)]
    every = np.concatenate(far).astype(np.float64)
    found = FrameScaler.measure(far)
    np.testing.assert_allclose(found.mean, every.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.scale, every.std(axis=0), rtol=1e-9)


def test_it_is_kept_in_a_file_and_told_from_a_tokenizer(tmp_path):
    frames = FrameScaler.measure(tables(5), stack=3)
    frames.save(tmp_path / "f.json")
    assert load_encoder(tmp_path / "f.json") == frames == FrameScaler.load(tmp_path / "f.json")
    assert load_encoder(tmp_path / "f.json").fingerprint == frames.fingerprint
    assert frames.fingerprint != FrameScaler.measure(tables(5)).fingerprint
    with pytest.raises(DataError, match="it is of the kind vectors, which cuts no text"):
        Tokenizer.load(tmp_path / "f.json")
    Tokenizer.train("char", ["ab"]).save(tmp_path / "t.json")
    assert isinstance(load_encoder(tmp_path / "t.json"), Tokenizer)
    with pytest.raises(DataError, match="it is of the kind char, and not vectors"):
        FrameScaler.load(tmp_path / "t.json")
    content = json.loads((tmp_path / "f.json").read_text())
    content["mean"][0] += 1
    (tmp_path / "f.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="its checksum is not that of its content"):
        load_encoder(tmp_path / "f.json")


@pytest.mark.parametrize("vocabulary", [12, 70_000])
def test_a_corpus_gives_back_what_was_put_in(tmp_path, monkeypatch, vocabulary):
    monkeypatch.setattr("regard.data.pairs.CHUNK_PAIRS", 3)
    monkeypatch.setattr("regard.data.encode_corpus.WRITTEN", 2)
    monkeypatch.setattr(Tokenizer, "vocab_size", vocabulary)
    given = tables(29)
    frames, corpus = made(tmp_path / "c.arrow", given, texts=True)
    assert corpus.features == 3
    assert corpus.src_lengths.tolist() == [len(table) for table in given]
    for i, (table, pair) in enumerate(zip(given, pairs_of(given), strict=True)):
        np.testing.assert_array_equal(corpus.frames(i), frames.encode(table))
        assert corpus.pair(i) == pair._replace(frames=None)
        assert len(corpus.tgt(i)) == i % 5 + 1
    assert not corpus.frames(0).flags.owndata
