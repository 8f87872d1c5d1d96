"""The checks of a release find what they are for; the whole of them run in `make long`."""

import re
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from benchmarks.tools import readme_figure, release_check, wheel_check

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path):
    """A project that could be released."""
    files = {
        "src/regard/version.py": '__version__ = "0.3.0"\n',
        "pyproject.toml": "[project.urls]\n"
        + "".join(f'{name} = "https://example.org/"\n' for name in release_check.ADDRESSES),
        "CITATION.cff": "version: 0.3.0\n",
        "CHANGELOG.md": "# Changelog\n\n## 0.3.0 (2027-01-02)\n\n## 0.2.0 (2026-12-01)\n",
        "README.md": "![a](picture.svg) [b](https://example.org) [c](#part) `[d](none)`\n",
        "picture.svg": "",
        "none": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def sentences(findings):
    return [(one.sentence, one.release_only) for one in findings]


def test_a_project_that_could_be_released_has_no_findings(project):
    assert sentences(release_check.check_version(project)) == []
    assert sentences(release_check.check_addresses(project)) == []
    assert sentences(release_check.check_links(project)) == []


@pytest.mark.parametrize(
    ("file", "text", "said", "release_only"),
    [
        ("CITATION.cff", "version: 0.2.0\n", "CITATION.cff must have the version 0.3.0", False),
        ("CHANGELOG.md", "## 0.2.0 (2026-12-01)\n", "must begin with 0.3.0", False),
        ("CHANGELOG.md", "## 0.3.0 (unreleased)\n", "must have a date", True),
        ("pyproject.toml", '[project]\nversion = "0.3.0"\n', "remove its own", False),
    ],
)
def test_a_version_that_differs_is_found(project, file, text, said, release_only):
    (project / file).write_text(text)
    ((sentence, only),) = sentences(release_check.check_version(project))
    assert said in sentence
    assert only is release_only


def test_missing_addresses_and_dead_links_are_found(project):
    (project / "pyproject.toml").write_text('[project.urls]\nHomepage = "http://example.org"\n')
    assert len(sentences(release_check.check_addresses(project))) == 4
    (project / "README.md").write_text("[a](gone.md#part) [b](http://example.org)\n")
    assert [said for said, _ in sentences(release_check.check_links(project))] == [
        "README.md links to gone.md#part, which does not exist",
        "README.md must link by https, but has http://example.org",
    ]


def wheel(path, *names, size=1):
    with zipfile.ZipFile(path, "w") as files:
        for name in names:
            files.writestr(name, b"x" * size)
    return path


def test_contents_that_a_wheel_may_not_have_are_found(tmp_path):
    good = (*release_check.REQUIRED, "regard-1.dist-info/licenses/LICENSE")
    assert sentences(release_check.check_wheel(wheel(tmp_path / "a.whl", *good))) == []
    bad = ("regard/__pycache__/a.pyc", "regard/model.pt", "tests/test_a.py", "regard/.env")
    found = sentences(release_check.check_wheel(wheel(tmp_path / "b.whl", *good[1:], *bad)))
    assert [said.split(" must")[0].split(",")[0] for said, _ in found] == [
        "the wheel",  # the package alone
        "the wheel",  # py.typed
        "regard/__pycache__/a.pyc",
        "regard/model.pt",
        "regard/.env",
    ]
    large = wheel(tmp_path / "c.whl", *good, size=release_check.MOST_FILE_BYTES + 1)
    assert len(sentences(release_check.check_wheel(large))) == len(good) + 1  # and the whole


def test_metadata_that_an_index_would_not_take_are_found():
    text = (
        f"Name: regard\nVersion: {release_check.version_of(ROOT)}\nSummary: s\n"
        "License-Expression: Apache-2.0\nRequires-Python: >=3.11\n{}\n\n{}\n"
    )
    good = message_from_string(text.format("Classifier: Typing :: Typed", "[a](https://b.org)"))
    assert sentences(release_check.check_metadata(good)) == []
    bad = message_from_string(text.format("Classifier: Typing :: Guessed", "[a](docs/b.md)"))
    assert len(sentences(release_check.check_metadata(bad))) == 2


def labels(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_the_picture_of_the_readme_is_what_the_bundled_model_does(tmp_path):
    readme_figure.draw(tmp_path / "map.svg")
    drawn, kept = (
        labels(file.read_text(encoding="utf-8"))
        for file in (tmp_path / "map.svg", readme_figure.FIGURE)
    )
    assert len(drawn) == len(kept) > 30
    for one, other in zip(drawn, kept, strict=True):
        if re.fullmatch(r"[\d.]+", one):
            assert float(one) == pytest.approx(float(other), abs=0.02)
        else:
            assert one == other


@pytest.mark.long
def test_a_release_can_be_rehearsed():
    command = [sys.executable, "-m", "benchmarks.tools.release_check", "--rehearse"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.endswith("ready (rehearsed)\n"), done.stdout + done.stderr


@pytest.mark.long
def test_the_wheel_works_in_an_empty_environment(tmp_path):
    wheel_file = release_check.build(tmp_path / "build").wheel
    assert wheel_check.check(tmp_path / "core", wheel_file, "")["packages"] > 10
