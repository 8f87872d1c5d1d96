"""`regard predict`: one answer per line, and what it says when it cannot."""

import json
import math
import os
import subprocess

import pytest

from cli.tools import done, regard, sentence
from forked_python import forked_python

# trains or decodes with real models: not part of `make check`
pytestmark = pytest.mark.slow


def answers(result):
    return done(result).splitlines()


@pytest.fixture
def sources(tmp_path):
    path = tmp_path / "sources.txt"
    path.write_text("abc\nfgh\nabcdef\n", encoding="utf-8")
    return path


def test_one_answer_per_line_in_any_encoding(run, sources):
    result = regard("predict", run, sources)
    assert len(answers(result)) == 3
    assert result.stderr == ""
    sources.write_text("abc\nfgh\nabcdef\n", encoding="utf-16")
    recoded = regard("predict", run, sources)
    assert answers(recoded) == answers(result)
    assert "sources.txt is not UTF-8 and is read as utf-16" in recoded.stderr


def test_a_table_is_read_by_the_column_of_its_sources(run, sources, tmp_path):
    expected = answers(regard("predict", run, sources))
    rows = [(i, text, text[::-1]) for i, text in enumerate(sources.read_text().split(), start=7)]
    tables = {
        "a.csv": "id,text,label\n" + "".join(f"{i},{text},{other}\n" for i, text, other in rows),
        "b.csv": "Text;id\n" + "".join(f'"{text}";{i}\n' for i, text, _ in rows),
        "c.csv": "text\n" + "".join(f"{text}\n" for _, text, _ in rows),
        "d.csv": "".join(f"{text},{other}\n" for _, text, other in rows),
        "e.jsonl": "".join(json.dumps({"id": i, "src": text}) + "\n" for i, text, _ in rows),
        "f.json": json.dumps([{"text": text, "id": i} for i, text, _ in rows]),
    }
    for name, content in tables.items():
        (tmp_path / name).write_text(content)
        assert answers(regard("predict", run, tmp_path / name)) == expected, name
    (tmp_path / "g.csv").write_text("".join(f"{i},{text},x\n" for i, text, _ in rows))
    said = sentence(regard("predict", run, tmp_path / "g.csv"), 1)
    assert "its columns are 7, abc, x, and which is the source is not clear: name it, as in" in said
    assert answers(regard("predict", run, tmp_path / "g.csv", "--columns", "1")) == expected
    (tmp_path / "h.csv").write_text("id,text\n1,a,b\n")
    assert "3 columns where the first one has 2" in sentence(
        regard("predict", run, tmp_path / "h.csv"), 1
    )
    said = sentence(regard("predict", run, sources, "--columns", "1"), 2)
    assert "--columns must be for files that end in .csv" in said


def talk(stdin, send, args, lines):
    """What is answered to each line before the next is sent, and then what was said of it."""
    words = [forked_python(), "-m", "regard", "predict", *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, stdin=stdin, **pipes, text=True) as process:
        found = []
        for line in lines:
            send(process, f"{line}\n")
            found.append(process.stdout.readline().rstrip("\n"))
        send(process, None)
        rest, said = process.communicate(timeout=240)
    assert (process.returncode, rest) == (0, "")
    return found, said


@pytest.mark.timeout(120)
def test_what_is_typed_is_answered_line_by_line(run, sources):
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()

    def type_in(process, text):
        os.write(ours, (text or "\x04").encode())  # Ctrl-D

    try:
        found, said = talk(theirs, type_in, [run], sources.read_text().splitlines())
    finally:
        os.close(ours)
        os.close(theirs)
    assert found == answers(regard("predict", run, sources))
    assert said == "regard: type a line and press Enter; Ctrl-D ends.\n"


def test_a_bundled_model_is_a_run_and_a_file_of_its_name_is_a_file(run, in_folder, monkeypatch):
    monkeypatch.setattr("regard.api.bundled_models.HOME", run.parent)
    by_folder = answers(regard("predict", run, stdin="abc\n"))
    assert answers(regard("predict", "run", stdin="abc\n")) == by_folder
    assert answers(regard("predict", run, "run", stdin="abc\n")) == by_folder
    (in_folder / "run").write_text("abc\n")
    assert answers(regard("predict", run, "run")) == by_folder


def ranked(result):
    """The fields of each row of several answers: number of the source, rank, score, text."""
    rows = [line.split("\t", 3) for line in answers(result)]
    return [(int(source), int(rank), float(score), text) for source, rank, score, text in rows]


def test_several_answers_have_their_source_rank_and_score(run, sources):
    found = ranked(regard("predict", run, sources, "--beam", 3, "--nbest", 2))
    assert [row[:2] for row in found] == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]
    assert all(one[2] >= two[2] for one, two in zip(found[::2], found[1::2], strict=True))
    assert found[0][3] != found[1][3]
    best = [text for _, rank, _, text in found if rank == 1]
    assert best == answers(regard("predict", run, sources, "--beam", 3))


def test_json(run, sources):
    lines = answers(regard("predict", run, sources, "--jsonl", "--nbest", 2))
    assert len(lines) == 3
    first = json.loads(lines[0])
    assert first["src_tokens"] == ["a", "b", "c", "</s>"]
    assert len(first["alternatives"]) == 1
    head = first["attention"]["cross"][0][0]
    assert [len(row) for row in head] == [4] * (len(first["tokens"]) + 1)
    assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in head)
    assert len(first["token_log_probs"]) == len(first["tokens"]) + 1


OPTIONS = {
    "no beam": (["--beam", 0], ["beam", "at least 1", "0"]),
    "more answers than beam": (["--beam", 2, "--nbest", 3], ["nbest", "at most beam = 2", "3"]),
    "top_p without draws": (["--top-p", 0.5], ["num_samples", "at least 1"]),
    "min above max": (["--min-len", 5, "--max-len", 2], ["min_len", "max_len = 2", "5"]),
    "no characters": (["--max-chars", 0], ["--max-chars", "at least 1", "0"]),
    "beam in words": (["--beam", "wide"], ["--beam", "integer", "regard predict --help"]),
}


@pytest.mark.plain
@pytest.mark.parametrize("case", OPTIONS)
def test_bad_usage(run, sources, case):
    args, fragments = OPTIONS[case]
    said = sentence(regard("predict", run, sources, *args), 2)
    assert all(fragment in said for fragment in fragments), said


@pytest.mark.parametrize("damage", ["cut", "of another preset"])
def test_a_damaged_model(run, in_folder, damage):
    for name in ("tokenizer.src.json", "tokenizer.tgt.json", "model.safetensors", "config.json"):
        (in_folder / name).write_bytes((run / name).read_bytes())
    if damage == "cut":
        (in_folder / "model.safetensors").write_bytes(b"\0" * 100)
    else:
        record = json.loads((in_folder / "config.json").read_text())
        changed = {"format": record["format"], "config": {**record["config"], "preset": "luong"}}
        (in_folder / "config.json").write_text(json.dumps(changed))
    assert "model.safetensors must hold the weights" in sentence(regard("predict", "."), 1)


LONG = "a" * 101 + "\n"


def test_bad_lines_can_be_left_out_and_keep_their_places(run):
    lines = [b"ab\xff\n", b"abc\n", b"a\tb\n", LONG.encode(), b"fgh\n", b"ab\0\n"]
    asked = ("predict", run, "--skip-bad", "--max-chars", 100)
    result = regard(*asked, stdin=b"".join(lines))
    first, second = answers(regard("predict", run, stdin="abc\nfgh\n"))
    assert answers(result) == ["", first, "", "", second, ""]
    assert result.stderr.startswith("regard: 4 bad lines were left out (1 ")
    assert "stdin, line 3: a source must have no tab" in result.stderr
    twice = ranked(regard(*asked, "--beam", 2, "--nbest", 2, stdin=b"".join(lines)))
    assert [source for source, *_ in twice] == [1, 2, 2, 3, 4, 5, 5, 6]
    assert [row[0] for row in twice if math.isnan(row[2])] == [1, 3, 4, 6]


def test_a_line_that_was_left_out_has_an_error_in_its_place_as_json(run, tmp_path):
    file = tmp_path / "t.jsonl"
    asked = ("predict", run, "--skip-bad", "--max-chars", 100, "--json", "--trace", file)
    lines = [json.loads(line) for line in answers(regard(*asked, stdin=LONG + "abc\n"))]
    assert list(lines[0]) == ["text", "error"]
    assert lines[0]["error"].startswith("stdin, line 1: ")
    assert lines[1]["src_tokens"] == ["a", "b", "c", "</s>"]
    assert len(file.read_text().splitlines()) == 1


def test_answers_begin_with_what_is_asked_for(run):
    asked = ("predict", run, "--prefix", "gh", "--batch", 2, "--max-len", 6)
    found = answers(regard(*asked, stdin="abc\nabcdef\nfg\n\nh\n"))
    assert len(found) == 5
    assert all(text.startswith("gh") for text in found)


def test_a_prefix_that_cannot_be_written(run):
    said = sentence(regard("predict", run, "--prefix", "g我", stdin="abc\n"), 2)
    assert "--prefix must be what the model has tokens for, but it is 'g我'" in said


def closed(run, redirection, stdin=""):
    """`regard predict` with streams as a shell has set them up: exit code and stderr."""
    command = f'exec "$1" -m regard predict "$2" --device cpu {redirection}'
    told = subprocess.run(
        ["bash", "-c", command, "bash", forked_python(), str(run)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return told.returncode, told.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        ("<&-", "regard: stdin: it is closed: "),
        (">&-", "regard: stdout must be open, but it is closed: "),
        (">/dev/full", "regard: output: it cannot be read or written (No space left on device): "),
    ],
)
def test_streams_that_are_closed_or_full(run, redirection, said):
    code, stderr = closed(run, redirection, "abc\n")
    assert code == 1
    assert stderr.startswith(said), stderr
    assert stderr.count("\n") == 1


def test_a_trace_file_is_as_it_was_until_all_lines_are_answered(run, sources, tmp_path):
    file, bad = tmp_path / "traces.jsonl", tmp_path / "bad.txt"
    file.write_text("mine")
    bad.write_bytes(sources.read_bytes() + b"\xff\n")
    told = regard("predict", run, bad, "--batch", 1, "--trace", file)
    assert told.exit_code == 1
    assert f"{file} is as it was: 3 traces were not kept" in told.stderr
    assert file.read_text() == "mine"
    assert regard("predict", run, tmp_path / "missing", "--trace", file).exit_code == 1
    assert file.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.glob(".*")) == []
    done(regard("predict", run, sources, "--trace", file))
    assert len(file.read_text().splitlines()) == 3
