"""Errors in Chinese: the catalogue has each template of the sources, and sentences read whole."""

import json
import re
from pathlib import Path
from string import Formatter

import pytest

from cli.tools import regard
from error_templates import Templates
from regard import messages
from regard.errors import ArgumentError, DataError, RegardError
from regard.messages import error_translation, use_language
from regard.messages.error_translation import error_sentence, split_sentence, translated_text

FILE = Path(messages.__file__).with_name("errors.zh.json")
CHINESE = "[\u4e00-\u9fff]"
#: parts of errors that are computed where the sources cannot be followed; most pass on the part of
#: another error
NOT_FOLLOWED = 42


@pytest.fixture(scope="module")
def texts():
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture
def chinese():
    with use_language("zh"):
        yield


def placeholders(text):
    return sorted(name for _, name, _, _ in Formatter().parse(text) if name is not None)


@pytest.mark.slow
def test_each_template_of_the_sources_has_a_chinese_text_and_none_is_stale(texts):
    """One test, since it takes seconds to read all sources."""
    templates = Templates()
    assert len(templates.found) > 1400
    assert {text: templates.found[text] for text in templates.found.keys() - texts.keys()} == {}
    assert texts.keys() - templates.found.keys() == set()
    assert len(templates.uncovered) <= NOT_FOLLOWED, sorted(templates.uncovered)


def test_texts_have_the_same_placeholders_and_ends(texts):
    assert [text for text in texts if placeholders(text) != placeholders(texts[text])] == []
    assert [text for text in texts if text.endswith(".") != texts[text].endswith("。")] == []


def test_texts_are_chinese_with_full_width_punctuation_and_spaces_beside_latin_letters(texts):
    plain = [text for text in texts.values() if not re.search(CHINESE, text)]
    assert [text for text in plain if re.search("[A-Za-z]{2} [A-Za-z]{2}", text)] == []
    wrong = f"{CHINESE}[,;:?!(]|[,;:?!)]{CHINESE}|{CHINESE} [，。；：）]"
    assert [text for text in texts.values() if re.search(wrong, text)] == []
    close = f"{CHINESE}[A-Za-z0-9`]|[A-Za-z0-9`]{CHINESE}"
    assert [text for text in texts.values() if re.search(close, text)] == []


def test_each_template_is_found_and_keeps_what_it_was_filled_with(texts, chinese):
    """All but those whose placeholders have nothing between them, where one cannot be told."""
    found = error_translation.ErrorTranslator(error_translation._catalogue("zh"))
    for english, translation in texts.items():
        values = [f"v{place}" for place in range(len(placeholders(english)))]
        if not english.startswith("word:") and "}{" not in english:
            assert translated_text(english.format(*values)) == found._filled(translation, values)


SENTENCES = {
    ("train", "missing.tsv"): "missing.tsv：没有这个文件；请检查名字，或者当前所在的文件夹。",
    ("train", "words.tsv"): "words.tsv 第 1 行：源和目标之间没有制表符；请加上一个，或者用 "
    'tgt="FILE" 给出两个平行文件中的第二个，或用 `regard train words.tsv -p lm-transformer` '
    "从各行学习语言模型，或者用 --skip-bad 略去无效的行。",
    ("train", "empty.tsv", "--skip-bad"): "empty.tsv 第 1 行：全部 2 行都无效（2 行目标为空），"
    "这一行的原因是目标一侧是空的；请填写或删除这一行。",
    ("train", "words.tsv", "hiden=3"): "setting 必须是 regard 认识的名字，但现在是 'hiden'："
    "也许是 'hidden'。",
    ("train", "words.tsv", "hidden=x"): "hidden 必须是整数，但现在是 'x'：参见 `regard settings`。",
    ("train", "--resume", "."): ". 必须是训练的文件夹，但其中没有 config.json：请给出 "
    "`regard train` 或 transformers 的 `save_pretrained` 写出的文件夹。",
    (
        "train",
        "words.tsv",
        "--dta",
    ): "没有选项 --dta（也许是 --data-dir, --dev）：请参见 `regard train --help`。",
    ("train", "words.tsv", "--minutes", "x"): "'--minutes' 的值无效：应是数字，但无法解析："
    "请参见 `regard train --help`。",
    ("shw",): "没有命令 'shw'，是不是想写 'show'：请参见 `regard --help`。",
    ("show", "g2p", "a", "b"): "多余的参数（b）：由几个词组成的 TEXT 请放在引号里，或者参见 "
    "`regard show --help`。",
    ("compare", "g2p"): "缺少参数 'B'：请参见 `regard compare --help`。",
    ("export", "g2p", "-o", "."): "-o 必须是新文件夹，但现在是 .，它已存在：请另选一个。",
    ("runs", "missing"): "FOLDER 必须是文件夹，但现在是 missing：请给出存放训练的文件夹。",
    ("serve", "g2p", "--port", "99999"): "--port 必须在 0 到 65535 之间，但现在是 99999："
    "0 表示任一空闲端口。",
    ("predict", "g2p", "words.tsv", "--beam", "0"): "beam 必须至少为 1，但现在是 0："
    "请选一个更大的数。",
    ("predict", "g2p", "words.tsv", "--length-penalty", "11"): "length_penalty 必须是不小于 0 "
    "的有限数，且不超过 10，但现在是 11.0：0 表示不使用。",
}


@pytest.mark.parametrize("words", SENTENCES, ids=" ".join)
def test_commands_end_with_a_chinese_sentence(words, tmp_path, monkeypatch):
    (tmp_path / "words.tsv").write_text("a b\n", encoding="utf-8")
    (tmp_path / "empty.tsv").write_text("a\t\nb\t\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = regard(words[0], "--lang", "zh", *words[1:]) if words[0] != "shw" else None
    result = result or regard("--lang", "zh", *words)
    assert result.exit_code in (1, 2)
    assert result.stderr.splitlines()[-1] == f"regard: {SENTENCES[words]}"


def test_the_message_of_an_error_stays_english(chinese):
    error = ArgumentError("beam", "be at least 1", 0, "choose a larger number")
    assert str(error) == "beam must be at least 1, but it is 0: choose a larger number."
    assert split_sentence(error) == ("beam 必须至少为 1，但现在是 0", "请选一个更大的数")
    missing = DataError("this and that.tsv", 3, "the line is empty", "delete it")
    assert split_sentence(missing) == ("this and that.tsv 第 3 行：这一行是空的", "请删除它")


def test_the_rules_of_chinese_sentences(chinese):
    def shown(rule, value):
        return error_sentence(ArgumentError("x", rule, value, "leave it out"))

    assert shown("be given", "missing") == "x 必须给出，但现在没有给出：请省略它。"
    assert shown("be left out with data in shards", 3) == (
        "x 对分片数据必须省略，但现在是 3：请省略它。"
    )
    assert shown("be a folder", Path("missing")) == "x 必须是文件夹，但现在是 missing：请省略它。"
    file = shown("be a folder", "the file a.txt")
    assert file == "x 必须是文件夹，但现在是文件 a.txt：请省略它。"
    error = ArgumentError("the series", "be given", "missing", "leave it out")
    assert error_sentence(error) == "时间序列必须给出，但现在没有给出：请省略它。"


@pytest.mark.parametrize(
    "text",
    [
        "frobnicate the widget and see",
        "Expected all tensors to be on the same device, but found at least two devices: try it.",
        "",
        "of",
        "中文：不变。",
        "a and b, " * 1000,
        "'bread and butter'",
        "/data/this and that",
    ],
)
def test_a_text_without_a_translation_stays_as_it_is(text, chinese):
    assert translated_text(text) == text
    assert error_sentence(RegardError(text)) == text


def test_a_failure_of_the_translation_does_not_hide_the_error(monkeypatch, chinese):
    def fail(*args):
        raise OSError("no catalogue")

    monkeypatch.setattr(error_translation, "_catalogue", fail)
    error = ArgumentError("beam", "be at least 1", 0, "choose a larger number")
    assert error_sentence(error) == str(error)
    monkeypatch.setenv("REGARD_LANG", "xx")
    assert error_sentence(error) == str(error)
