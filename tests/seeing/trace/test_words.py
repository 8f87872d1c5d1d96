"""Sub-words to words."""

import numpy as np

from regard import extras
from regard.data import word_vectors
from regard.seeing import Map, Text, Token, Trace
from regard.seeing.trace.view import groups, merge, with_segmented_words
from seeing.tools import TARGET, translation


def labels(trace, side, **options):
    return [group.label for group in groups(trace, side, **options)]


def test_columns_are_summed_and_rows_averaged():
    lacking = np.array([1.0, 0.5, 0.9, 1.0], dtype=np.float32)[:, None]
    trace = translation()
    merged = merge(trace, trace.maps[0])
    # by hand: unhappy = .1 + .1; chat = the mean of its two rows
    expected = [
        [0.70, 0.20, 0.06, 0.04],
        [0.03, (0.50 + 0.30) / 2, (0.40 + 0.60) / 2, 0.07],
        [0.00, 0.04, 0.06, 0.90],
    ]
    np.testing.assert_allclose(merged.weights[0], expected, atol=1e-6)
    assert [group.label for group in merged.rows] == ["le", "chat", "</s>"]
    assert [group.label for group in merged.columns] == ["the", "unhappy", "cat", "</s>"]
    short = Map.of("cross", 0, trace.maps[0].weights * lacking, missing=True)
    np.testing.assert_allclose(merge(trace, short).missing, [[0.0, 0.3, 0.0]], atol=1e-6)


def characters(text):
    words, number = [], -1
    for i, char in enumerate(text):
        number += char != " " and (i == 0 or text[i - 1] == " ")
        words.append(None if char == " " else number)
    return Text(
        text,
        tuple(Token(c, (i, i + 1), words[i]) for i, c in enumerate(text)),
    )


def test_characters_are_left_alone_unless_asked_for():
    trace = Trace(characters("ab cd"), TARGET)
    assert labels(trace, "source", words="auto") == ["a", "b", " ", "c", "d"]
    assert labels(trace, "source", words=True) == ["ab", " ", "cd"]
    assert labels(trace, "target", words="auto") == ["le", "chat", "</s>"]
    unknown = Text("abc", tuple(Token("<unk>", (i, i + 1), 0) for i in range(3)))
    assert labels(Trace(unknown, TARGET), "source", words="auto") == ["<unk>"] * 3


def chinese():
    """“我喜欢猫。” as characters and pieces, all of one word, as spaces count."""
    spans = [(0, 2), (2, 3), (3, 4), (4, 5)]
    tokens = tuple(Token("我喜欢猫。"[a:b], (a, b), word=0) for a, b in spans)
    end = Token("</s>", special=True)
    weights = np.eye(5, dtype=np.float32)[None]
    text = Text("我喜欢猫。", (*tokens, end))
    return Trace(text, text, (Map.of("cross", 0, weights),))


def split(monkeypatch, *words):
    """Makes a segmenter that finds these words, whatever is installed."""
    monkeypatch.setattr(word_vectors, "_made", lambda name: lambda run: list(words))


def test_tokens_of_a_script_without_spaces_belong_to_the_words_in_which_they_begin(monkeypatch):
    split(monkeypatch, "我", "喜欢", "猫", "。")
    found = with_segmented_words(chinese())
    # 我喜 begins in 我, and 欢 in 喜欢
    assert [token.word for token in found.source.tokens] == [0, 1, 2, 3, None]
    split(monkeypatch, "我喜欢", "猫。")
    found = with_segmented_words(chinese())
    assert labels(found, "source") == ["我喜欢", "猫。", "</s>"]
    merged = merge(found, found.maps[0])
    # by hand: each word looks at itself alone, and the rows of a word are averaged
    np.testing.assert_allclose(merged.weights[0], np.eye(3), atol=1e-6)


def test_without_a_segmenter_tokens_stay_and_a_note_says_how_to_install_one(monkeypatch):
    monkeypatch.setattr(extras, "is_installed", lambda module: False)
    word_vectors._made.cache_clear()
    found = with_segmented_words(chinese())
    assert labels(found, "source") == ["我喜", "欢", "猫", "。", "</s>"]
    assert found.notes[-1].endswith("run `pip install 'regard[cjk]'`")
