"""Jobs: every id once whatever dies, resumed jobs, refused ones, and what a death changes."""

import json

import pytest

from jobs.toys import ShoutTask, rows_in
from regard.jobs import JobError, JobFolder, LocalExecutor, find_shards, run_job, runner
from regard.jobs.records import JobRecord
from regard.jobs.runner import Suspects
from regard.worker_processes import START

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


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_each_row_is_answered_once(inputs, tmp_path, format):
    out = tmp_path / "out"
    found = run(inputs, out, format=format, unit_rows=10)
    assert (found.now.shards, found.now.rows, found.errors.total()) == (5, 40, 0)
    names = sorted(path.name for path in out.iterdir() if path.name[0] != "_")
    ends = [f"a.txt-{i:05d}-of-00003.{format}" for i in range(3)]
    assert names == [*ends, *(f"b.txt-{i:05d}-of-00002.{format}" for i in range(2))]
    rows = rows_in(out)
    expected = [(f"a.txt:{i + 1}", LINES[i].upper()) for i in range(25)]
    expected += [(f"b.txt:{i + 1}", LINES[25 + i].upper()) for i in range(15)]
    assert [(id, row["text"]) for id, row in rows.items()] == expected
    summary = json.loads((out / "_summary.json").read_text())
    assert summary["rows"] == {"before": 0, "now": 40}
    assert JobFolder(out).outputs() == names


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


class BrokenOffError(Exception):
    pass


class InterruptedExecutor(LocalExecutor):
    """Breaks off after some shards, in the midst of the next."""

    def __init__(self, shards):
        super().__init__()
        self.shards = shards

    def run(self, work, items):
        for number, found in super().run(work, items):
            yield number, found
            if number + 1 == self.shards:
                raise BrokenOffError


def test_an_interrupted_job_goes_on_where_it_was(inputs, tmp_path):
    out, whole = tmp_path / "out", tmp_path / "whole"
    run(inputs, whole, unit_rows=10)
    for _ in range(2):
        with pytest.raises(BrokenOffError):
            run(inputs, out, executor=InterruptedExecutor(1), unit_rows=10)
    task = ShoutTask()
    found = run(inputs, out, task, unit_rows=10)
    assert found.before.shards == 2
    assert (found.now.shards, found.now.rows) == (3, 5 + 10 + 5)
    assert sum(map(len, task.blocks)) == found.now.rows
    assert rows_in(out) == rows_in(whole)
    again = ShoutTask()
    assert run(inputs, out, again, unit_rows=10).before.rows == 40
    assert again.blocks == []


def test_a_shard_is_done_again_if_it_or_its_note_is_damaged_or_missing(inputs, tmp_path):
    out = tmp_path / "out"
    run(inputs, out)
    whole = rows_in(out)
    content = bytearray((out / "a.txt.parquet").read_bytes())
    content[20] ^= 1
    (out / "a.txt.parquet").write_bytes(content)
    found = run(inputs, out)
    assert (found.damaged, found.before.rows, found.now.rows) == (["a.txt.parquet"], 15, 25)
    (out / "b.txt.parquet").unlink()
    assert run(inputs, out).now.rows == 15
    note = out / "_done" / "b.txt.parquet.json"
    note.write_bytes(note.read_bytes()[:-9])  # cut off by a crash
    assert run(inputs, out).now.rows == 15
    assert run(inputs, out).now.rows == 0
    assert rows_in(out) == whole


@pytest.mark.parametrize(
    ("task", "options", "reason"),
    [
        (ShoutTask(model="m2"), {}, r"the model must be as when the job in .* began"),
        (ShoutTask(loud=2), {}, r"the options must be as .* loud was None and is 2"),
        (ShoutTask(), {"unit_rows": 5}, r"rows_per_shard was 20480 and is 5"),
        (ShoutTask(), {"format": "jsonl"}, r"format was 'parquet' and is 'jsonl'"),
    ],
)
def test_another_model_or_other_options_are_refused(inputs, tmp_path, task, options, reason):
    run(inputs, tmp_path / "out")
    whole = rows_in(tmp_path / "out")
    with pytest.raises(JobError, match=reason):
        run(inputs, tmp_path / "out", task, **options)
    assert rows_in(tmp_path / "out") == whole


def test_changed_inputs_are_refused_and_further_ones_are_not(inputs, tmp_path):
    out = tmp_path / "out"
    run(inputs, out)
    (inputs / "c.txt").write_text("more\n")
    assert run(inputs, out).now.rows == 1
    (inputs / "b.txt").rename(tmp_path / "b.txt")
    with pytest.raises(JobError, match=r"the inputs must be .* b\.txt is missing among them"):
        run(inputs, out)
    (inputs / "b.txt").write_text("other\n")
    with pytest.raises(JobError, match=r"the content of b\.txt has changed"):
        run(inputs, out)


def test_a_folder_of_something_else_is_refused(inputs, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("")
    with pytest.raises(
        JobError, match=r"a new folder or that of an earlier job, but .*'mine\.txt'"
    ):
        run(inputs, tmp_path / "out")
    with pytest.raises(JobError, match=r"is a file"):
        run(inputs, tmp_path / "out" / "mine.txt")
    with (
        JobFolder(tmp_path / "held").held(),
        pytest.raises(JobError, match=r"another one is at work in"),
    ):
        run(inputs, tmp_path / "held")


def test_a_full_disk_ends_the_job_and_keeps_what_is_done(inputs, tmp_path, monkeypatch):
    task, out = ShoutTask(), tmp_path / "out"
    shout = task.shout

    def fill(records):
        if any(record.id == "b.txt:9" for record in records):
            # an error of the file is not one of the model, which `answer_rows` would catch
            monkeypatch.setattr("regard.atomic_files.os.fsync", full)
        return shout(records)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(task, "shout", fill)
    with pytest.raises(JobError) as raised:
        run(inputs, out, task)
    assert str(raised.value) == (
        f"{out / 'b.txt.parquet'}: the shard cannot be written (No space left on device): make "
        f"room, or check that the folder may be written to, and run the same command again; 1 "
        f"finished shard is kept."
    )
    monkeypatch.undo()
    found = run(inputs, out)
    assert (found.before.rows, found.now.rows) == (25, 15)
    assert len(rows_in(out)) == 40


def test_a_place_where_workers_die_twice_is_narrowed_down():
    suspects = Suspects.of([7, 0], 7)
    assert suspects == (set(), set())
    suspects = Suspects.of([7, 0, 7, 9, 9], 7)
    assert suspects == ({*range(7, 14)}, {9})
    records = [JobRecord(row, f"a:{row}") for row in range(1, 26)]
    blocks = list(suspects.blocks(records, 7, "a.txt"))
    assert [[record.row for record in block] for block in blocks] == [
        [*range(1, 8)],
        *([i] for i in range(8, 15)),
        [*range(15, 22)],
        [22, 23, 24, 25],
    ]
    bad = [record for block in blocks for record in block if record.error]
    assert [(record.row, record.kind) for record in bad] == [(10, "worker died")]
    assert bad[0].error.startswith("a.txt, line 10: workers died each time")


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        ([START] * runner.MAX_LOAD_DEATHS, "5 died while they loaded the model"),
        (range(runner.MAX_DEATHS), "40 workers died on this shard"),
    ],
)
def test_deaths_without_end_end_the_attempts(inputs, tmp_path, places, reason):
    """The logs are those of workers that have died."""

    class Dying(LocalExecutor):
        def run(self, work, items):
            log = JobFolder(work.folder).open_folder / items[0].output
            log.parent.mkdir()
            log.write_text("".join(f"\n-1 {place}" for place in places))
            return super().run(work, items)

    try:
        said = run(inputs, tmp_path / "out", executor=Dying()).failed["a.txt.parquet"]
    except JobError as error:
        said = str(error)
    assert reason in said
