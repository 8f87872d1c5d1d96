"""Runs on data in shards: the same as on one file, encoded once, and resumed exactly."""

import io
import os
import random
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from rich.console import Console

from regard.data.encode_corpus import PairEncoder
from regard.errors import ArgumentError, DataError
from regard.training import RunFolder, make_config, resume_run, start_run
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
    run = RunFolder(output)
    run.create()
    prepare(config(data, **settings), run, said)
    return said.file.getvalue()


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


@pytest.mark.long
def test_a_resumed_run_on_shards_is_exact(folder, tmp_path):
    settings = {"eval_every": 3, "schedule": "constant"}  # which does not depend on the end
    whole = start_run(config(folder, steps=6, **settings), tmp_path / "whole", quiet=True)
    start_run(config(folder, steps=3, **settings), tmp_path / "parts", quiet=True)
    parts = resume_run(tmp_path / "parts", {"steps": 6}, quiet=True)
    assert_same(last_checkpoint(whole.path), last_checkpoint(parts.path))


def test_a_broken_shard_is_named_with_its_line(folder, tmp_path):
    (folder / "2.tsv").write_bytes(b"good\tg o o d\nbad\xff\tb a d\n")
    with pytest.raises(DataError, match=r"2\.tsv, line 2: invalid UTF-8") as caught:
        start_run(config(folder), tmp_path / "run", quiet=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists(), "nothing was encoded yet, so nothing stays"
    said = encode(folder, tmp_path / "run", skip_bad=True)
    assert f"{folder / '2.tsv'}: 1 bad line was left out" in said


@pytest.fixture
def run(folder, tmp_path):
    return start_run(config(folder), tmp_path / "run", quiet=True)


def go_on(run):
    said = console()
    resume_run(run.path, {"steps": 4}, console=said)
    return said.file.getvalue()


def refused(run):
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(DataError) as caught:
        go_on(run)
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert "--from RUN" in str(caught.value)
    return str(caught.value)


def test_changed_missing_and_new_shards_are_named(run, folder):
    (folder / "3.tsv").rename(folder / "9.tsv")
    assert refused(run).startswith(f"{folder}/3.tsv: this shard is missing")
    (folder / "8.tsv").write_text(lines(WORDS[180:240]))
    (folder / "9.tsv").rename(folder / "3.tsv")
    assert refused(run).startswith(f"{folder}/8.tsv: this shard is new")
    (folder / "8.tsv").unlink()
    (folder / "1.tsv").write_text(lines([*WORDS[60:119], "hhhh"]))
    assert refused(run).startswith(f"{folder}/1.tsv: it has changed since the run began:")


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
    write_pairs = PairEncoder.write

    def slowly(self, pairs, file, name):
        time.sleep(0.75 * seconds)
        (tmp_path / f"{Path(name).stem}-{os.environ['RANK']}.encoded").touch()
        return write_pairs(self, pairs, file, name)

    def work():
        output = RunFolder(tmp_path / "run")
        output.create()
        shares, *_ = prepare(config(folder), output, console()).batches.take(0, 0)
        np.save(tmp_path / f"rows-{os.environ['RANK']}.npy", shares[0].rows)
        dist.destroy_process_group()

    limited = partial(dist.init_process_group, timeout=timedelta(seconds=seconds))
    monkeypatch.setattr(dist, "init_process_group", limited)
    monkeypatch.setattr(PairEncoder, "write", slowly)
    assert run_processes(2, work, **elastic) == [0, 0]
    assert len([*tmp_path.glob("*-0.encoded")]) == len([*tmp_path.glob("*.encoded")]) > 0
    alone, *_ = prepare(config(folder), RunFolder(tmp_path / "run"), console()).batches.take(0, 0)
    rows = [np.load(tmp_path / f"rows-{rank}.npy") for rank in range(2)]
    assert all(len(some) for some in rows)
    assert sorted(np.concatenate(rows)) == sorted(alone[0].rows)
