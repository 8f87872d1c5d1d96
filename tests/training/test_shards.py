"""Runs on data in shards: the same as on one file, encoded once, and resumed exactly."""

import io
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from rich.console import Console

from jobs.toys import DeadlyExecutor
from regard.data import Corpus
from regard.data.corpus import note_path
from regard.errors import ArgumentError, DataError, RegardError
from regard.training import RunFolder, encode_run, make_config, resume_run, start_run
from regard.training.encode_shards import MAX_DEATHS, ShardItem, ShardWork
from regard.training.run_data import prepare_data
from regard.training.setup import prepare
from training.tools import SETTINGS, assert_same, last_checkpoint, run_processes

# trains real models
pytestmark = pytest.mark.slow

BRIEF = {**SETTINGS, "steps": 2, "eval_every": 2, "save_every": 2, "report": False}
DRAW = random.Random(5)
WORDS = ["".join(DRAW.choices("abcdefgh", k=DRAW.randint(3, 7))) for _ in range(300)]
SHARDS = 5


def lines(words):
    return "".join(f"{word}\t{' '.join(reversed(word))}\n" for word in words)


def write(folder, words=WORDS, shards=SHARDS):
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(words, shards)):
        (folder / f"{number}.tsv").write_text(lines(part))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "pairs")


def config(data, **settings):
    return make_config({"data": str(data), **BRIEF, **settings})


def console():
    return Console(file=io.StringIO(), width=1000)


def encode(data, output, **settings):
    said = console()
    encode_run(config(data, **settings), output, console=said)
    return said.file.getvalue()


def opened(folder):
    """The encoded data of a run, as a resumed run opens them."""
    return prepare_data(folder.read_config(), folder, None, lambda sentence: None)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.shards.iterdir()}


def manifest(folder):
    return json.loads(folder.manifest_file.read_text())


def decoded(folder):
    saved, train = opened(folder).task.input.encoder, opened(folder).train
    ids, lengths = train.gather("src", np.arange(len(train))).padded(0)
    rows = zip(ids.tolist(), lengths.tolist(), strict=True)
    return [saved.decode(row[:length]) for row, length in rows]


def prepared(data, output, **settings):
    run = RunFolder(output)
    run.create()
    run.write_config(config(data, **settings))
    return prepare(run.read_config(), run, Console(quiet=True))


def test_shards_give_the_batches_of_one_file(folder, tmp_path):
    one = tmp_path / "one.tsv"
    one.write_text(lines(WORDS))
    a, b = prepared(one, tmp_path / "a"), prepared(folder, tmp_path / "b")
    for epoch in range(2):
        assert a.batches.in_epoch(epoch) == b.batches.in_epoch(epoch)
        for number in range(a.batches.in_epoch(epoch)):
            [left], [right] = a.batches.take(epoch, number)[0], b.batches.take(epoch, number)[0]
            assert (left.rows == right.rows).all()
            for side in ("src", "tgt"):
                ids = (share.pairs.gather(side, share.rows).padded(0)[0] for share in (left, right))
                assert (next(ids) == next(ids)).all()
    assert a.evaluator.dev.sources == b.evaluator.dev.sources


def test_a_resumed_run_on_shards_is_exact(folder, tmp_path):
    settings = {"eval_every": 3, "schedule": "constant"}  # which does not depend on the end
    whole = start_run(config(folder, steps=6, **settings), tmp_path / "whole", quiet=True)
    start_run(config(folder, steps=3, **settings), tmp_path / "parts", quiet=True)
    parts = resume_run(tmp_path / "parts", {"steps": 6}, quiet=True)
    assert_same(last_checkpoint(whole.path), last_checkpoint(parts.path))


def test_the_manifest_names_each_shard_with_size_and_checksum(folder, tmp_path):
    encode(folder, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    found = manifest(run)
    assert [row["name"] for row in found["shards"]] == sorted(map(str, folder.iterdir()))
    assert found["total"]["lines"] == 300
    dev = Corpus(run.data / "dev.arrow")
    assert sum(row["encoded"]["pairs"] for row in found["shards"]) + len(dev) == 300
    for row in found["shards"]:
        assert row["bytes"] == os.path.getsize(row["name"])
        file = run.shards / row["encoded"]["file"]
        assert row["encoded"]["bytes"] == file.stat().st_size
        assert json.loads(note_path(file).read_text())["crc32"] == row["encoded"]["crc32"]


@pytest.mark.plain
@pytest.mark.long
def test_workers_that_are_killed_lose_and_double_no_pair(folder, tmp_path, monkeypatch):
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    whole = encode_run(config(folder), tmp_path / "whole", quiet=True)
    executor = DeadlyExecutor(2, str(tmp_path / "marker"))
    killed = config(folder)
    run = encode_run(killed, tmp_path / "run", quiet=True, executor=executor)
    assert len(list(tmp_path.glob("marker*"))) == 2, "two shards"
    assert contents(run) == contents(whole)
    assert len(opened(run).train) == len(opened(whole).train)


@pytest.mark.long
@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_cluster_encodes_what_this_machine_does(folder, tmp_path):
    pytest.importorskip("ray")
    words = [sys.executable, "-m", "regard", "encode", str(folder), "-o"]
    for name, more in (("there", ["--ray", "--workers", "2"]), ("here", [])):
        done = subprocess.run([*words, name, *more], capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, f"{name}\n"), done.stderr
    assert contents(RunFolder(tmp_path / "there")) == contents(RunFolder(tmp_path / "here"))


def test_a_shard_that_kills_each_worker_is_named(folder, tmp_path):
    run = RunFolder(tmp_path / "run")
    encode(folder, run.path)
    work = ShardWork(run.path, run.read_config(), 0.0)
    path = run.shards / "new.arrow"
    path.with_name(".new.arrow.0.part").write_text("\n-1" * MAX_DEATHS)
    with pytest.raises(RegardError, match=r"10 workers, but as many have died on .*1\.tsv"):
        work(ShardItem(str(folder / "1.tsv"), path))
    missing = ShardWork(tmp_path / "nowhere", run.read_config(), 0.0)
    with pytest.raises(RegardError, match=r"one does not see .*nowhere"):
        missing(ShardItem(str(folder / "1.tsv"), path))


def encode_until_killed(data, output, shards):
    """Encode in a process that is killed when it has written the last of some shards."""
    replace, written = os.replace, []

    def deadly(source, target):
        replace(source, target)
        if str(target).endswith(".arrow.json") and "shards" in str(target):
            written.append(target)
            if len(written) == shards:
                os.kill(os.getpid(), signal.SIGKILL)

    os.replace = deadly
    encode_run(config(data), output, quiet=True)


def test_a_killed_encoding_goes_on_with_the_missing_shards(folder, tmp_path, monkeypatch):
    encode(folder, tmp_path / "whole")
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=encode_until_killed, args=(folder, tmp_path / "run", 3))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    run = RunFolder(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.shards.glob("*.arrow")}
    assert len(before) == 3
    damaged = min(before)
    damaged.write_bytes(damaged.read_bytes()[:-1])  # not whole, so it is written again
    encoded = count_encoded(monkeypatch)
    encode_run(None, run.path, console=console())
    assert len(encoded) == 3
    after = {path: path.stat().st_mtime_ns for path in run.shards.glob("*.arrow")}
    assert [after[path] == before[path] for path in sorted(before)] == [False, True, True]
    assert contents(run) == contents(RunFolder(tmp_path / "whole"))


def count_encoded(monkeypatch, also=lambda name: None):
    """Shards that are encoded from now on; `also` is called before each of them."""
    work, done = ShardWork.__call__, []

    def count(self, item):
        also(item.name)
        done.append(item.name)
        return work(self, item)

    monkeypatch.setattr(ShardWork, "__call__", count)
    return done


def test_a_broken_shard_is_named_with_its_line(folder, tmp_path):
    (folder / "2.tsv").write_bytes(b"good\tg o o d\nbad\xff\tb a d\n")
    with pytest.raises(DataError, match=r"2\.tsv, line 2: invalid UTF-8") as caught:
        encode(folder, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists(), "nothing was encoded yet, so nothing stays"
    said = encode(folder, tmp_path / "run", skip_bad=True)
    assert f"{folder / '2.tsv'}: 1 bad line was left out" in said


@pytest.fixture
def run(folder, tmp_path):
    return start_run(config(folder), tmp_path / "run", quiet=True)


def go_on(run, **options):
    said = console()
    resume_run(run.path, {"steps": 4}, console=said, **options)
    return said.file.getvalue()


def refused(run):
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(DataError) as caught:
        go_on(run)
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert "--accept-changed-data" in str(caught.value)
    return str(caught.value)


def test_changed_missing_and_new_shards_are_named(run, folder, monkeypatch):
    (folder / "1.tsv").write_text(lines([*WORDS[60:119], "hhhh"]))
    first = refused(run)
    assert first.startswith(f"{folder}/1.tsv: it has changed since the run began (")
    (folder / "3.tsv").rename(folder / "9.tsv")
    all_three = refused(run)
    assert f"; also {folder}/3.tsv; also {folder}/9.tsv: restore" in all_three
    dev = (run.data / "dev.arrow").read_bytes()
    held = {Corpus(run.data / "dev.arrow").pair(i).src for i in range(3)}
    encoded = count_encoded(monkeypatch)
    said = go_on(run, accept_changed_data=True)
    assert "The dev set stays as it was." in said
    assert len(encoded) == 1, "a shard with another name has the same content"
    assert (run.data / "dev.arrow").read_bytes() == dev
    assert "hhhh" in decoded(run)
    assert not held & {*decoded(run)}
    assert len(contents(run)) == 2 * SHARDS, "the file of the old content is removed"
    resume_run(run.path, {"steps": 6}, quiet=True)  # from now on, these are the data of the run


def test_a_run_goes_on_when_its_shards_are_gone(run, folder):
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with pytest.raises(DataError):
        encode(folder, run.path.with_name("other"))
    assert "goes on with what it has encoded" in go_on(run)


def test_tokenisers_are_learned_from_the_beginning_of_each_shard(folder, tmp_path, monkeypatch):
    (folder / "4.tsv").write_text(lines([*WORDS[240:299], "zzzz"]))
    (folder / "3.tsv").write_text(lines(["xxxx", *WORDS[181:240]]))
    monkeypatch.setattr("regard.training.run_files.TOKENIZER_LINES", 100)
    encode(folder, tmp_path / "run")
    tokens = json.loads((tmp_path / "run" / "tokenizer.src.json").read_text())
    assert "x" in json.dumps(tokens)
    assert "z" not in json.dumps(tokens), "it stands after the first 20 pairs"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tgt": "x.txt"}, "tgt must be left out with data in shards"),
        ({"src_tokenizer": "vectors"}, "data must be one file for "),
    ],
)
def test_what_does_not_go_with_shards_is_refused(folder, tmp_path, settings, says):
    with pytest.raises(ArgumentError) as caught:
        start_run(config(folder, **settings), tmp_path / "run", quiet=True)
    assert str(caught.value).startswith(says)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def elastic():
    """The environment that torchrun gives its processes, apart from their numbers."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": store.port}
    del store  # which listened until here


@pytest.mark.system
def test_the_first_process_encodes_and_the_others_wait(folder, tmp_path, monkeypatch, elastic):
    """Encoding takes longer here than messages between processes may."""
    seconds = 4

    def slowly(name):
        time.sleep(1.5 * seconds / SHARDS)
        (tmp_path / f"{Path(name).stem}-{os.environ['RANK']}.encoded").touch()

    def work():
        output = RunFolder(tmp_path / "run")
        output.create()
        shares, *_ = prepare(config(folder), output, console()).batches.take(0, 0)
        np.save(tmp_path / f"rows-{os.environ['RANK']}.npy", shares[0].rows)
        dist.destroy_process_group()

    limited = partial(dist.init_process_group, timeout=timedelta(seconds=seconds))
    monkeypatch.setattr(dist, "init_process_group", limited)
    count_encoded(monkeypatch, slowly)
    assert run_processes(2, work, **elastic) == [0, 0]
    encoded = sorted(path.stem for path in tmp_path.glob("*.encoded"))
    assert encoded == [f"{number}-0" for number in range(SHARDS)]
    alone, *_ = prepare(config(folder), RunFolder(tmp_path / "run"), console()).batches.take(0, 0)
    rows = [np.load(tmp_path / f"rows-{rank}.npy") for rank in range(2)]
    assert all(len(some) for some in rows)
    assert sorted(np.concatenate(rows)) == sorted(alone[0].rows)
