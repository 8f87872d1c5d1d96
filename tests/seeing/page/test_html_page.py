import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from browser import samples
from regard.seeing import Map, Text, Trace
from regard.seeing.page import html_page
from regard.seeing.page.writer import embedded, join
from regard.seeing.trace.storage import from_json


class Elements(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self):
        super().__init__()
        self.found, self.scripts = [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.found and self.found[-1][0] == "script":
            self.scripts[-1] += data


def elements(page):
    parser = Elements()
    parser.feed(page)
    return parser


def test_the_data_of_a_page_is_the_trace():
    trace = samples.sentence()
    parsed = elements(html_page.render([trace]))
    content = next(text for text in parsed.scripts if text.startswith('{"format"'))
    again = from_json(json.loads(content))
    assert again.source == trace.source
    np.testing.assert_allclose(again.maps[1].weights, trace.maps[1].weights, atol=1e-3)


def test_no_token_becomes_markup():
    page = html_page.render([samples.hostile()])
    parsed = elements(page)
    assert [attrs for tag, attrs in parsed.found if tag in ("b", "img")] == []
    assert not any("onerror" in attrs for _, attrs in parsed.found)
    kinds = [attrs.get("type") for tag, attrs in parsed.found if tag == "script"]
    assert kinds == ["application/json", "application/json", None]
    assert "{{" not in re.sub(r"\{\{title\}\}", "", page.split("<script")[0])
    policy = next(attrs["content"] for tag, attrs in parsed.found if "http-equiv" in attrs)
    assert re.match("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-", policy)
    assert "unsafe-inline" not in policy.split("script-src")[1]


def test_a_trace_without_maps_and_an_empty_one_have_a_page():
    bare = Trace(Text.of(["a"]), Text.of(["b"]))
    none = Trace(Text.of([]), Text.of([]), (Map.of("cross", 0, np.zeros((1, 0, 0))),))
    assert "holds no attention" in html_page.render([bare])
    assert "<svg" in html_page.render([none])


def test_a_figure_without_scripts_says_what_it_pools():
    labels = [str(i) for i in range(300)]
    weights = np.eye(300, dtype=np.float32)[None]
    maps = (Map.of("cross", 0, weights),)
    trace = Trace(Text.of(labels), Text.of(labels), maps)
    page = html_page.render([trace])
    assert '<p class="note">3 outputs to a cell, which shows the strongest</p>' in page


@pytest.mark.parametrize("main", ["main.js", "forecast.js"])
def test_modules_are_joined_each_after_its_imports(main):
    script = join(main)
    assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE)
    assert "</script" not in script.lower()
    assert "<!--" not in script
    made = re.findall(r"^const (module_\w+) = \(\(\) => \{$", script, re.MULTILINE)
    assert made[-1] == f"module_{main.removesuffix('.js')}"
    for name in made:
        uses = [match.start() for match in re.finditer(rf"= {name};", script)]
        assert all(script.index(f"const {name} = (") < use for use in uses)


def test_numbers_that_json_does_not_have_are_null():
    content = {"a": float("-inf"), "b": [float("nan"), 1.5], "c": "NaN </script>"}
    found = embedded(content)
    assert json.loads(found, parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 1.5],
        "c": "NaN </script>",
    }
    assert "<" not in found
