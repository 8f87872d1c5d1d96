"""Words of scripts without spaces; those of other scripts stay as spaces separate them."""

import pytest

from regard.data import word_vectors
from regard.data.word_vectors import segment_words, unspaced_language


def words(text):
    return [text[slice(*span)] for span in segment_words(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the cat's mat, 3.5 km", ["the", "cat's", "mat,", "3.5", "km"]),
        ("", []),
        ("我 喜欢 猫", ["我", "喜欢", "猫"]),  # already split
        ("สวัสดี ครับ", ["สวัสดี", "ครับ"]),
    ],
)
def test_spaces_separate_words_where_there_are_any(text, expected, monkeypatch):
    monkeypatch.setattr(word_vectors, "_made", None)  # no segmenter may be asked
    assert words(text) == expected


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        ("jieba", "我喜欢猫。", ["我", "喜欢", "猫", "。"]),
        ("jieba", "用 GPT-2模型训练", ["用", "GPT-2", "模型", "训练"]),
        ("budoux", "今日は天気です。", ["今日は", "天気です。"]),
        ("pythainlp", "ฉันรักแมว", ["ฉัน", "รัก", "แมว"]),
    ],
)
def test_segmenters_find_words(module, text, expected):
    pytest.importorskip(module)
    assert words(text) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["the cat"], None),
        (["the cat 猫"], None),
        (["我喜欢猫", "ok"], "zh"),
        (["今日は天気です"], "ja"),
        (["東京都庁舎の前"], "ja"),
        (["ฉันรักแมว"], "th"),
        ([""], None),
        (["123"], None),
    ],
)
def test_the_script_tells_the_language(texts, expected):
    assert unspaced_language(texts) == expected
