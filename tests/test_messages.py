"""The catalogues of both languages are whole, and every text of the page is in them."""

import ast
import re
from pathlib import Path
from string import Formatter

import pytest

from regard import messages
from regard.errors import ArgumentError
from regard.messages import catalogue, language, message, use_language
from regard.seeing.page import html_page
from regard.seeing.page.writer import module_names, text_of
from source_trees import package

SOURCES = Path(messages.__file__).parents[1]
TEMPLATES = sorted((SOURCES / "seeing" / "page" / "templates").glob("*.html"))


CHINESE = "[\u4e00-\u9fff]"
LITERAL = re.compile(r"""(")((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`""")


def placeholders(text):
    return sorted((name, spec, how) for _, name, spec, how in Formatter().parse(text) if name)


def test_both_languages_have_the_same_keys():
    assert catalogue("en").keys() == catalogue("zh").keys()


def test_texts_have_the_same_placeholders():
    english, chinese = catalogue("en"), catalogue("zh")
    differing = [key for key in english if placeholders(english[key]) != placeholders(chinese[key])]
    assert differing == []


def test_chinese_texts_are_chinese():
    """All but symbols and names have a Chinese character, and no half-width sentence marks."""
    chinese = catalogue("zh")
    same = {key for key, text in chinese.items() if not re.search(CHINESE, text)}
    names = r"[\W\d]*|AER|95%|.*\{\w+[^}]*\}.*"
    assert [key for key in same if not re.fullmatch(names, chinese[key])] == []
    assert [key for key, text in chinese.items() if re.search(CHINESE + "[,;:?!]", text)] == []


def used_keys():
    """Keys that sources name, and patterns of those that they put together."""
    whole, parts = set(), set()
    for name in module_names():
        source = text_of(name)
        found = re.findall(r'"((?:page|measure)\.[\w.-]+)"', source)
        whole |= {(name, key) for key in found}
        parts |= set(re.findall(r"`((?:page|measure)\.[^`]*)`", source))
    for path in TEMPLATES:
        source = path.read_text(encoding="utf-8")
        whole |= {(path.name, k) for k in re.findall(r'(?:say|label)\("([\w.-]+)"[,)]', source)}
        whole |= {(path.name, k) for k in re.findall(r'data-text="([\w.-]+)"', source)}
    for path, nodes in package().nodes.items():
        for node in nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "message":
                whole |= {
                    (path.name, leaf.value)
                    for leaf in ast.walk(node.args[0])
                    if isinstance(leaf, ast.Constant)
                    and isinstance(leaf.value, str)
                    and re.fullmatch(r"[a-z][\w-]*(\.[\w-]*\w)+", leaf.value)
                }
    return whole, parts


def test_every_key_that_is_named_is_in_the_catalogue():
    whole, parts = used_keys()
    english = catalogue("en")
    assert len(whole) > 300
    assert [one for one in sorted(whole) if one[1] not in english] == []
    for part in parts:
        pattern = re.sub(r"\\\$\\\{.*?\\\}", ".+", re.escape(part))
        if part != "measure.${token.length ? method : name}":
            assert any(re.fullmatch(pattern, key) for key in english), part


#: literals of the page with several words that nobody reads
UNREAD = re.compile(
    r"use strict|prefers-color|linear-gradient|Segoe UI|Noto Sans|checks faithfulness|"
    r"pictured beside-it|"
    r"token special|token chosen|line tall|note key|inputs ends|segments save|field check|"
    r" versus |regard check RUN|\?xml|kind,layer,head| h?rgba?\(|Page up, page down|Home End"
)


def literals(source):
    """String literals of a module, without comments."""
    code = re.sub(r"^\s*(?://|/\*\*|\*).*$", "", source, flags=re.MULTILINE)
    code = re.sub(r"\s//.*$", "", code, flags=re.MULTILINE)
    for quote, plain, template in LITERAL.findall(code):
        yield plain if quote else re.sub(r"\$\{[^{}]*\}", "", template)


def test_no_text_of_the_page_is_outside_the_catalogue():
    found = [
        (name, text)
        for name in module_names()
        for text in literals(text_of(name))
        if re.search(r"[A-Za-z]{2,} [A-Za-z]{2,}|^[A-Z][a-z]+$", text) and not UNREAD.search(text)
    ]
    keys = {"Enter", "Esc", "Home", "End", "Escape", "Files"}
    assert [one for one in found if one[1] not in keys] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_text_of_a_template_is_outside_the_catalogue(path):
    body = path.read_text(encoding="utf-8").partition("</head>")[2] or path.read_text("utf-8")
    text = re.sub(
        r"\{% macro label.*?endmacro %\}|\{% block (?:style|attributes) %\}.*?\{% endblock %\}|"
        r"\{\{.*?\}\}|\{%.*?%\}|<script.*?</script>",
        "",
        body,
        flags=re.DOTALL,
    )
    shown = re.sub(r"<[^>]*>", "\n", text)
    assert re.findall(r"[A-Za-z]{3,}", shown.replace("English", "")) == []
    assert re.findall(r'(?:aria-label|title)="[^"]*[a-z]{3}[^"]*"', text) == []


def test_the_page_has_the_texts_of_all_languages():
    found = html_page.render_live({})
    assert '<html lang="en" data-language="auto">' in found
    assert "每一行是一个输出" in found
    assert found.count("page.tab.text") == 2
    with use_language("zh"):
        assert '<html lang="zh-CN"' in html_page.render_live({})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_TW"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "C"}, "en"),
        ({"LC_ALL": "en_GB.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LC_MESSAGES": "zh_CN", "LANG": "en_US"}, "zh"),
        ({"REGARD_LANG": "zh", "LC_ALL": "en_US"}, "zh"),
        ({"REGARD_LANG": "en", "LANG": "zh_CN"}, "en"),
    ],
)
def test_the_environment_chooses_the_language(monkeypatch, environment, expected):
    for name in ("REGARD_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert language() == expected


def test_an_unknown_language_is_an_error_that_names_the_others(monkeypatch):
    monkeypatch.setenv("REGARD_LANG", "fr")
    with pytest.raises(ArgumentError, match=r"REGARD_LANG must be one of en, zh, but it is 'fr'"):
        message("show.words")


def test_a_block_has_its_own_language():
    with use_language("zh"):
        assert message("show.words") == "词"
        with use_language(None):
            assert language() == "zh"
    assert message("show.words") == "words"
