"""`regard show`, on traces that were saved, and on a run."""

import json
import os
import re
import subprocess

import pytest

from cli.tools import done, regard, sentence
from forked_python import forked_python
from regard.messages import set_language
from regard.seeing import display
from regard.seeing.trace.storage import from_json, to_json
from seeing.tools import of_labels, translation


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "trace.json"
    display.save(translation(), path)
    return path


@pytest.fixture
def many(tmp_path):
    """Two layers of three heads."""
    path = tmp_path / "many.json"
    display.save(of_labels("abc", "xy", heads=3, layers=2), path)
    return path


@pytest.fixture
def several(tmp_path):
    """A file with a trace on each of two lines."""
    path = tmp_path / "several.jsonl"
    made = [translation(), of_labels("abc", "xy")]
    path.write_text("".join(json.dumps(to_json(trace)) + "\n" for trace in made))
    return path


@pytest.fixture(autouse=True)
def _wide_enough(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # whatever terminal the tests run in


def test_a_saved_trace_is_drawn(saved):
    lines = done(regard("show", saved)).splitlines()
    assert "  le ▓▓ .70◂ ░░ .20 ░░ .06      ·   0.90" in lines


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (["--list"], "le ← ████████▌ the 0.70"),
        (["--plain"], 'Output 1, "le", looked mostly at "the"'),
        (["--tokens"], "happy"),
        (["--words"], "unhappy"),
        (["--special", "hide"], "0.07  0.40"),
        (["--ascii"], "## .70<"),
    ],
)
def test_options(saved, options, fragment):
    assert fragment in done(regard("show", saved, *options))


def test_json_is_the_whole_trace(saved):
    found = from_json(json.loads(done(regard("show", saved, "--json"))))
    assert found.source == translation().source


def test_a_file_of_several_traces_shows_the_first_and_says_how_many_there_are(several, saved):
    result = regard("show", several)
    assert done(result) == done(regard("show", saved))
    assert result.stderr == "trace 1 of 2: --line N shows another\n"


def test_heads_and_layers_can_be_chosen(many):
    assert "layer 1 of 0-1 · head 2 of 0-2" in done(regard("show", many, "--layer", 1, "--head", 2))
    assert "mean of 3 heads" in done(regard("show", many, "--head", "mean"))


@pytest.mark.parametrize("ending", ["svg", "json", "png", "pdf"])
def test_a_file_instead_of_the_map(saved, tmp_path, ending):
    path = tmp_path / f"out.{ending}"
    result = regard("show", saved, "-o", path)
    assert done(result) == ""
    assert f"saved {path}" in result.stderr
    assert path.stat().st_size > 100


@pytest.mark.parametrize(
    ("args", "fragments"),
    [
        (["--kind", "foo"], ["kind", "cross", "'foo'"]),
        (["--special", "x"], ["special", "dim, hide or show"]),
        (["--list", "--plain"], ["--list and --plain"]),
        (["-o", "x.gif"], [".svg", "x.gif"]),
        (["text"], ["saved trace"]),
    ],
)
@pytest.mark.plain
def test_bad_usage(saved, args, fragments):
    said = sentence(regard("show", saved, *args), 2)
    assert all(fragment in said for fragment in fragments)


def test_colours_are_for_terminals_and_can_be_refused(saved, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    colored = regard("show", saved).stdout
    assert "\x1b[1m▓▓ .70◂" in colored
    monkeypatch.setenv("NO_COLOR", "1")
    assert done(regard("show", saved)) == re.sub(r"\x1b\[\d*m", "", colored)


@pytest.mark.slow
def test_a_pipe_gets_no_codes_and_an_encoding_without_blocks_gets_ascii(saved):
    command = [forked_python(), "-m", "regard", "show", str(saved)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    out = subprocess.run(command, capture_output=True, env=environment, check=True).stdout
    assert b"\x1b" not in out
    assert out.isascii()
    assert not done(regard("show", saved)).isascii()


@pytest.mark.slow
def test_a_run_is_drawn(run):
    out = done(regard("show", run, "abc"))
    assert ["a", "b", "c", "</s>", "p"] in [line.split() for line in out.splitlines()]


def test_output_is_chinese_if_asked_for_before_or_after_the_command(saved, monkeypatch):
    after = done(regard("show", str(saved), "--lang", "zh")).splitlines()
    assert after == done(regard("--lang", "zh", "show", str(saved))).splitlines()
    assert after[0].startswith("每一行是一个输出，单元格标明它关注了哪里 · 交叉注意力")
    assert after[-1].startswith("· 小于 .05（平均每行未画出")
    set_language(None)  # what a new process has
    assert "Output 1" in done(regard("show", str(saved), "--plain"))
    monkeypatch.setenv("REGARD_LANG", "zh_CN.UTF-8")
    assert "第 1 个输出“le”主要关注“the”(0.70)" in done(regard("show", str(saved), "--plain"))
    assert "--lang 必须是 en, zh 之一" in regard("show", str(saved), "--lang", "fr").stderr
    monkeypatch.delenv("REGARD_LANG")
    told = sentence(regard("show", str(saved), "--lang", "fr"), code=2)
    assert "--lang must be one of en, zh, but it is 'fr'" in told
