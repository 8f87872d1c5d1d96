import gzip
import lzma
import struct
from pathlib import Path

import pytest
import torch

from regard.lab import datasets
from regard.lab.datasets import SentenceCorpus, digits, patches, vocabulary

TEXT = SentenceCorpus("made up", [["b", "a", "b"], ["c", "b", "a"], ["d"]], [["a", "z"]])


def test_the_most_frequent_words_get_the_ids_after_the_special_symbols() -> None:
    assert vocabulary(TEXT, 6) == {"b": 4, "a": 5}


def test_a_wanted_word_is_kept_however_rare_unless_the_text_lacks_it() -> None:
    assert vocabulary(TEXT, 6, ["d", "nowhere", "d"]) == {"d": 4, "b": 5}


def test_shakespeare_is_bundled_without_the_names_of_who_speaks() -> None:
    text = datasets.sentences(None)
    assert text.name == "Tiny Shakespeare"
    assert text.train[0] == ["before", "we", "proceed", "any", "further", "hear", "me", "speak"]
    assert len(text.train) > 10_000 > len(text.test) > 1_000
    assert not {"First Citizen", "MENENIUS:"} & {w for s in text.train for w in s}


def test_penn_treebank_is_read_sentence_by_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "ptb"
    folder.mkdir()
    for part in ("train", "test"):
        (folder / f"ptb.{part}.txt.gz").write_bytes(gzip.compress(b" one two three \n too short\n"))
    assert datasets.sentences(str(tmp_path)).train == [["one", "two", "three"]]


@pytest.mark.parametrize("name", ["digits", "tinyshakespeare", "cmudict"])
def test_what_is_bundled_carries_its_licence(name: str) -> None:
    assert "LICENCE" in datasets.bundled(name, "LICENSE.txt")


def test_patches_are_squares_row_by_row() -> None:
    image = torch.arange(16.0).view(1, 4, 4)
    cut = patches(image, 2)[0].tolist()
    assert cut == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


def test_the_bundled_digits_are_1797_images_of_all_ten_digits() -> None:
    found = digits(None)
    assert found.train.shape == (1200, 8, 8)
    assert found.test.shape == (597, 8, 8)
    assert 0 <= float(found.train.min()) < float(found.train.max()) == 1
    assert sorted(set(found.test_labels.tolist())) == list(range(10))


def test_mnist_is_read_from_its_own_format(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        header = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 28, 28)
        pixels = bytes([255]) + bytes(2 * 28 * 28 - 1)
        (folder / f"{part}-images-idx3-ubyte.xz").write_bytes(lzma.compress(header + pixels))
        labels = bytes([0, 0, 8, 1]) + struct.pack(">I", 2) + bytes([7, 3])
        (folder / f"{part}-labels-idx1-ubyte.xz").write_bytes(lzma.compress(labels))
    found = digits(str(tmp_path))
    assert found.train_labels.tolist() == [7, 3]
    assert found.test[0, 0, 0] == 1
    assert found.test.sum() == 1
