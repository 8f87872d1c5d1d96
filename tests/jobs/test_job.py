"""Jobs: every row once, resumed jobs, refused ones, and inputs of every format."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet
import pytest

from jobs.toys import ShoutTask, rows_in
from regard.errors import ArgumentError
from regard.jobs import LocalExecutor, find_shards, run_job
from regard.jobs.runner import JobError, JobTask
from regard.tasks import NumberPrediction

LINES = [f"w{i}" for i in range(40)]


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in LINES[:25]))
    (folder / "b.txt").write_text("".join(f"{line}\n" for line in LINES[25:]))
    return folder


def run(inputs, out, task=None, executor=None, **options):
    shards = find_shards([str(inputs)])
    return run_job(task or ShoutTask(), shards, out, executor or LocalExecutor(), **options)


def test_each_row_is_answered_once(inputs, tmp_path):
    out = tmp_path / "out"
    found = run(inputs, out)
    assert (found.now, found.rows, found.errors.total()) == (2, 40, 0)
    names = sorted(path.name for path in out.iterdir() if path.name[0] not in "._")
    assert names == ["a.txt.parquet", "b.txt.parquet"]
    expected = [(f"a.txt:{i + 1}", LINES[i].upper()) for i in range(25)]
    expected += [(f"b.txt:{i + 1}", LINES[25 + i].upper()) for i in range(15)]
    assert [(id, row["text"]) for id, row in rows_in(out).items()] == expected


def test_bad_sources_become_rows_with_an_error(tmp_path):
    (tmp_path / "in").mkdir()
    lines = [b"fine", b"\xff", b"x" * 31, b"raise", b"good"]
    (tmp_path / "in" / "a.txt").write_bytes(b"\n".join(lines) + b"\n")
    found = run(tmp_path / "in", tmp_path / "out")
    rows = list(rows_in(tmp_path / "out").values())
    assert [row["text"] for row in rows] == ["FINE", None, None, None, "GOOD"]
    assert [bool(row["error"]) for row in rows] == [False, True, True, True, False]
    assert (
        "a.txt, line 4: the model failed on it (ZeroDivisionError: of a source)" in rows[3]["error"]
    )
    assert found.errors == {"invalid UTF-8": 1, "too long": 1, "model failed": 1}


def test_a_number_is_whole_and_has_no_score():
    trace = SimpleNamespace(target=SimpleNamespace(text="1e+12"))
    row = JobTask._row(SimpleNamespace(several=False), NumberPrediction(1e12 + 0.25, trace))
    assert row == {"text": "1000000000000.25", "score": None}


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.csv", "a.tsv"])
def test_sources_are_a_column_of_tables(tmp_path, name):
    rows = [{"key": f"k{i}", "src": f"w{i}", "tags": "V"} for i in range(9)]
    path = tmp_path / name
    sign = "\t" if name.endswith("tsv") else ","
    if name.endswith("parquet"):
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif name.endswith("jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [sign.join(row.values()) for row in rows]
        path.write_text("\n".join([sign.join(rows[0]), *lines]) + "\n")
    for columns, ending in ((("src", "src"), ""), (("src", "src", "tags"), "\tV")):
        out = tmp_path / f"out{len(columns)}"
        run(path, out, ShoutTask(columns=columns))
        texts = [row["text"] for row in rows_in(out).values()]
        assert texts == [f"W{i}{ending}" for i in range(9)]


class BrokenOffError(Exception):
    pass


class InterruptedExecutor(LocalExecutor):
    """Breaks off after the first shard."""

    def run(self, work, items):
        yield next(super().run(work, items))
        raise BrokenOffError


def test_an_interrupted_job_goes_on_where_it_was(inputs, tmp_path):
    out, whole = tmp_path / "out", tmp_path / "whole"
    run(inputs, whole)
    with pytest.raises(BrokenOffError):
        run(inputs, out, executor=InterruptedExecutor())
    task = ShoutTask()
    found = run(inputs, out, task)
    assert (found.before, found.now, found.rows) == (1, 1, 15)
    assert task.blocks == [(1, 7), (8, 7), (15, 1)]
    assert rows_in(out) == rows_in(whole)
    again = ShoutTask()
    assert run(inputs, out, again).before == 2
    assert again.blocks == []


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (ShoutTask(model="m2"), r"the model must be as when the job in .* began"),
        (ShoutTask(loud=2), r"the options must be as .* loud was None and is 2"),
    ],
)
def test_another_model_or_other_options_are_refused(inputs, tmp_path, task, reason):
    run(inputs, tmp_path / "out")
    whole = rows_in(tmp_path / "out")
    with pytest.raises(JobError, match=reason):
        run(inputs, tmp_path / "out", task)
    assert rows_in(tmp_path / "out") == whole


def test_changed_inputs_are_refused_and_further_ones_are_not(inputs, tmp_path):
    out = tmp_path / "out"
    run(inputs, out)
    (inputs / "c.txt").write_text("more\n")
    assert run(inputs, out).rows == 1
    (inputs / "b.txt").rename(tmp_path / "b.txt")
    with pytest.raises(JobError, match=r"the inputs must be .* b\.txt is missing among them"):
        run(inputs, out)
    (inputs / "b.txt").write_text("other\n")
    with pytest.raises(JobError, match=r"the content of b\.txt has changed"):
        run(inputs, out)


def test_folders_and_inputs_that_do_not_fit_are_refused(inputs, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("")
    with pytest.raises(
        JobError, match=r"a new folder or that of an earlier job, but .*'mine\.txt'"
    ):
        run(inputs, tmp_path / "out")
    with pytest.raises(JobError, match=r"is a file"):
        run(inputs, tmp_path / "out" / "mine.txt")
    for name in ("x", "x.parquet"):
        (inputs / name).write_text("")
    with pytest.raises(ArgumentError, match=r"be the only file that becomes x\.parquet"):
        find_shards([str(inputs / "x"), str(inputs / "x.parquet")])
    with pytest.raises(ArgumentError, match="INPUT must name a file, a folder or a pattern"):
        find_shards([str(tmp_path / "gone")])


def test_a_full_disk_ends_the_job_and_keeps_what_is_done(inputs, tmp_path, monkeypatch):
    task, out = ShoutTask(), tmp_path / "out"
    answer = task.answer

    def fill(shard, texts, first):
        if shard.name == "b.txt":
            # an error of the file is not one of the model, which `answer_rows` would catch
            monkeypatch.setattr("regard.atomic_files.os.fsync", full)
        return answer(shard, texts, first)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(task, "answer", fill)
    with pytest.raises(JobError) as raised:
        run(inputs, out, task)
    assert str(raised.value) == (
        f"{out / 'b.txt.parquet'}: the shard cannot be written (No space left on device): make "
        f"room, or check that the folder may be written to, and run the same command again; 1 "
        f"finished shard is kept."
    )
    monkeypatch.undo()
    assert run(inputs, out).rows == 15
    assert len(rows_in(out)) == 40
