import re
import shutil
from html.parser import HTMLParser

import pytest
import torch

from lab.tools import DRAWN, fail, install
from regard.lab import Claim, ExperimentContext, report, runner

VOID = {"meta", "path", "use", "rect", "br", "hr", "img", "link"}


class Silent:
    def on_start(self, name): ...
    def on_piece(self, name, label, cached): ...
    def on_end(self, name, status): ...


class Reader(HTMLParser):
    """Holds that tags are closed in order, and collects them."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def measured(folder, *names, seeds=(0, 1)):
    runner.run(names, ExperimentContext(torch.device("cpu"), seeds=seeds), folder, Silent())
    return report.write(folder)


def read(page):
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    return reader


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch, one=DRAWN, two=DRAWN)
        measured(folder, "one", "two")
    return folder


@pytest.fixture
def folder(monkeypatch, tmp_path, made):
    """A folder of its own with the results, figures and pages of two experiments."""
    install(monkeypatch, one={}, two={})
    return shutil.copytree(made, tmp_path / "report")


def test_the_page_says_all_of_it_and_escapes_it(folder):
    page = (folder / "report.html").read_text()
    words = "".join(read(page).words)
    for said in (
        "Is <half> less?",
        "By halving.",
        "Halves <i>grow</i>.",
        "document 1, a | b",
        "The halves are [0.0, 0.5] & more <b>.",
        'Halves, "drawn" & <seen>',
        "All <halves>",
        "2 claims: 2 hold, 0 hold with limits, 0 do not hold.",
        "regard lab two --quick --seeds 2 --device cpu",
    ):
        assert said in words, said


def test_the_page_loads_nothing(folder):
    reader = read((folder / "report.html").read_text())
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in reader.tags}
    (policy,) = [a["content"] for tag, a in reader.tags if "http-equiv" in a]
    assert "default-src 'none'" in policy
    links = [v for _, a in reader.tags for k, v in a.items() if k in ("href", "xlink:href", "src")]
    assert links
    assert all(link.startswith("#") for link in links)


def test_no_id_comes_twice_and_every_link_has_a_place(folder):
    reader = read((folder / "report.html").read_text())
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = {a[k][1:] for _, a in reader.tags for k in ("href", "xlink:href") if k in a}
    assert {"one", "two"} <= links <= set(ids)


def test_markdown_has_the_table_and_its_figures(folder):
    text = (folder / "report.md").read_text()
    assert "| claim | document | verdict | measured |" in text
    row = next(line for line in text.splitlines() if line.startswith("| [Halves"))
    assert "a \\| b" in row
    assert "| holds |" in row
    for path in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (folder / path).is_file()
    assert "figures/one-halves.svg" in text
    assert "| 0 | a\\|b |" in text


def test_one_that_failed_is_in_the_report(monkeypatch, tmp_path):
    install(monkeypatch, one={"measure": fail}, two={})
    one, two = measured(tmp_path, "one", "two")
    assert one.failure == "one failed (ValueError: the wire is cut)"
    assert (one.result, two.failure) == (None, "")
    said = "one failed (ValueError: the wire is cut): its traceback is in one.log."
    assert said in "".join(read((tmp_path / "report.html").read_text()).words)
    assert said in (tmp_path / "report.md").read_text()
    for page in ("report.html", "report.md"):
        assert "0 do not hold. Failed: one." in (tmp_path / page).read_text()


def test_a_failure_leaves_the_earlier_result_and_says_so(monkeypatch, folder):
    install(monkeypatch, one={"measure": fail})
    (one,) = measured(folder, "one")
    assert one.claims
    assert "from an earlier run" in (folder / "report.html").read_text()


def test_an_empty_folder_has_an_empty_report(monkeypatch, tmp_path):
    install(monkeypatch, one={})
    assert report.write(tmp_path) == []
    assert "0 claims" in (tmp_path / "report.html").read_text()


def test_verdicts_are_counted():
    claims = [Claim("", "", verdict, "") for verdict in ("holds", "holds", "does not hold")]
    assert report.count_verdicts(claims) == "3 claims: 2 hold, 0 hold with limits, 1 does not hold."
    assert (
        report.count_verdicts(claims[:1]) == "1 claim: 1 holds, 0 hold with limits, 0 do not hold."
    )
