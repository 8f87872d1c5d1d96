import gzip
from pathlib import Path

import pytest

from regard.lab import corpora
from regard.lab.corpora import Text, ids, vocabulary
from regard.symbols import UNK

TEXT = Text("made up", [["b", "a", "b"], ["c", "b", "a"], ["d"]], [["a", "z"]])


def test_the_most_frequent_words_get_the_ids_after_the_special_symbols() -> None:
    assert vocabulary(TEXT, 6) == {"b": 4, "a": 5}


def test_a_wanted_word_is_kept_however_rare_unless_the_text_lacks_it() -> None:
    assert vocabulary(TEXT, 6, ["d", "nowhere", "d"]) == {"d": 4, "b": 5}


def test_words_beyond_the_vocabulary_are_unknown() -> None:
    assert ids(["z", "a"], vocabulary(TEXT, 6)) == [UNK, 5]


def test_a_set_is_found_only_where_the_folder_has_it(tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    assert corpora.where(tmp_path, "ptb") == str(tmp_path)
    assert corpora.where(tmp_path, "mnist") is None
    assert corpora.where(None, "ptb") is None


def test_shakespeare_is_bundled_without_the_names_of_who_speaks() -> None:
    text = corpora.sentences(None)
    assert text.name == "Tiny Shakespeare"
    assert text.train[0] == ["before", "we", "proceed", "any", "further", "hear", "me", "speak"]
    assert len(text.train) > 10_000 > len(text.test) > 1_000
    assert not {"First Citizen", "MENENIUS:"} & {w for s in text.train for w in s}


def test_penn_treebank_is_read_sentence_by_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "ptb"
    folder.mkdir()
    for part in ("train", "test"):
        (folder / f"ptb.{part}.txt.gz").write_bytes(gzip.compress(b" one two three \n too short\n"))
    assert corpora.sentences(str(tmp_path)).train == [["one", "two", "three"]]


def test_pronunciations_are_letters_and_phonemes() -> None:
    pairs = corpora.pronunciations()
    assert ("A B E L N", "AE B EH L N") in pairs.test
    assert not set(pairs.train) & set(pairs.test)


def test_made_up_words_have_one_translation_each() -> None:
    pairs = corpora.made_up(3).train
    assert pairs == [("s0", "t0"), ("s1", "t1"), ("s2", "t2")]


@pytest.mark.parametrize("name", ["digits", "tinyshakespeare", "cmudict"])
def test_what_is_bundled_carries_its_licence(name: str) -> None:
    assert "LICENCE" in corpora.bundled(name, "LICENSE.txt")
