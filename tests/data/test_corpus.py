import json
import os
import zlib

import numpy as np
import pyarrow
import pytest

from data.tools import make_corpus, make_pairs, make_tokenizers
from regard.data import Pair, Tokenizer, build_corpus
from regard.data.corpus import corpus_problem, note_path
from regard.data.encode_corpus import PairEncoder
from regard.errors import DataError
from regard.symbols import EOS

LIMITS = {"max_src_len": 100, "max_tgt_len": 100}


@pytest.fixture
def small_parts(monkeypatch):
    """Many record batches, of several encoded parts each."""
    monkeypatch.setattr("regard.data.pairs.CHUNK_PAIRS", 5)
    monkeypatch.setattr("regard.data.encode_corpus.WRITTEN", 3)


@pytest.mark.parametrize("texts", [True, False])
def test_what_goes_in_comes_out(tmp_path, small_parts, texts):
    pairs = make_pairs(101)
    src_tok, tgt_tok = make_tokenizers(pairs)
    path = tmp_path / "c.arrow"
    corpus = build_corpus(iter(pairs), src_tok, tgt_tok, path, texts=texts, **LIMITS)
    assert (len(corpus), corpus.dropped) == (101, 0)
    assert pyarrow.ipc.open_file(path).num_record_batches == 7, "of 15 pairs each"
    for i, pair in enumerate(pairs):
        src, tgt = [*src_tok.encode(pair.src, pair.features), EOS], tgt_tok.encode(pair.tgt)
        assert (corpus.src(i).tolist(), corpus.tgt(i).tolist()) == (src, tgt)
        assert (corpus.src_lengths[i], corpus.tgt_lengths[i]) == (len(src), len(tgt))
        if texts:
            assert corpus.pair(i) == pair
    assert corpus.has_texts == texts
    assert corpus.src_lengths.dtype == corpus.tgt_lengths.dtype == np.int32


def test_nothing_left(tmp_path):
    with pytest.raises(DataError) as caught:
        make_corpus(tmp_path / "c.arrow", [Pair("abc", "1 2", 1)], max_src_len=2, max_tgt_len=7)
    said = "all 1 pairs are longer than 2 source or 7 target tokens: keep them with max_src_len=4."
    assert said in str(caught.value)
    src_tok, tgt_tok = make_tokenizers(make_pairs(3))
    with pytest.raises(DataError, match="there are no pairs to encode"):
        build_corpus([], src_tok, tgt_tok, tmp_path / "c.arrow", **LIMITS)
    assert os.listdir(tmp_path) == []


class Starts:
    """Starts of a run with the same file: what was said, and whether it was encoded again."""

    def __init__(self, path):
        self.path = path
        self.pairs = make_pairs(40)
        self.tokenizers = make_tokenizers(self.pairs)

    def __call__(self, **changes):
        src_tok = changes.pop("src_tok", self.tokenizers[0])
        source, texts = changes.pop("source", "x"), changes.pop("texts", False)
        limits = (LIMITS | changes).values()
        encoder = PairEncoder(src_tok, self.tokenizers[1], *limits, texts=texts)
        said, encoded = [], []

        def pairs():
            encoded.append(True)
            return self.pairs

        corpus = encoder.open_or_build(pairs, self.path, source=source, say=said.append)
        assert (len(corpus), corpus.dropped) == (40, 0)
        return bool(encoded), said


@pytest.mark.parametrize("change", ["source", "max_src_len", "max_tgt_len", "texts", "src_tok"])
def test_a_changed_start_does(tmp_path, change):
    start = Starts(tmp_path / "c.arrow")
    other = Tokenizer.train("char", ["xyz"])
    changes = {"source": "y", "max_src_len": 99, "max_tgt_len": 99, "texts": True, "src_tok": other}
    start()
    encoded, said = start(**{change: changes[change]})
    assert encoded
    assert said == [
        f"{start.path}: it was made from other data, by other tokenisers or with other limits, so "
        "it is built again."
    ]
    assert start(**{change: changes[change]}) == (False, [])


def flip(raw, place):
    return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"",
        lambda raw: flip(raw, len(raw) // 2),
        lambda raw: flip(raw, 100),
        lambda raw: flip(raw, len(raw) - 20),
    ],
)
def test_a_damaged_file_is_built_again(tmp_path, damage):
    start = Starts(tmp_path / "c.arrow")
    start()
    start.path.write_bytes(damage(start.path.read_bytes()))
    encoded, said = start()
    assert encoded
    assert said == [f"{start.path}: its checksum is not that of its content, so it is built again."]
    assert start() == (False, [])


def test_a_crafted_corpus_with_the_right_checksum_is_built_again(tmp_path):
    """Whoever changes a corpus can change its checksum as well."""
    path = tmp_path / "c.arrow"
    make_corpus(path, make_pairs(30))
    assert corpus_problem(path) is None
    table = pyarrow.ipc.open_file(pyarrow.BufferReader(path.read_bytes())).read_all()
    texts = pyarrow.array(["a"] * 30)
    changes = [
        table.drop_columns(["src"]),
        table.set_column(0, "src", texts),
        table.replace_schema_metadata(None),
        table.append_column("src", texts),
        table.set_column(1, "tgt", pyarrow.array([None] * 30, table.schema.types[1])),
    ]
    for changed in changes:
        with pyarrow.ipc.new_file(str(path), changed.schema) as writer:
            writer.write_table(changed)
        seal(path)
        assert corpus_problem(path) is not None
    path.write_bytes(b"ARROW1")
    seal(path)
    assert "cannot be read as Arrow" in corpus_problem(path)


def seal(path):
    crc = zlib.crc32(path.read_bytes())
    note_path(path).write_text(json.dumps({"pairs": 30, "dropped": 0, "crc32": crc}))
