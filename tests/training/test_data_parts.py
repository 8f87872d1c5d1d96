"""Parts of a run's data: records of files, manifests of shards, int8 storage, and evaluations."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from regard.data.text_files import FileContent
from regard.errors import ArgumentError, DataError
from regard.training import RunFolder, encode_shards, evaluator, make_config
from regard.training import run as runs
from regard.training.data_record import DataRecord, Shard, ShardManifest, difference
from regard.training.evaluator import Evaluator
from regard.training.run_data import prepare_data

A, B, C = (FileContent(10 * n, n, f"sum {n}") for n in (1, 2, 3))


def test_changes_of_files(tmp_path):
    assert difference(A, A) == ""
    assert "it has 1 lines and 10 bytes as before" in difference(A, A._replace(checksum="other"))
    assert "it had 1 lines and 10 bytes, and now has 2 lines and 20 bytes" in difference(A, B)
    assert "and now has 5 pairs" in difference(A, FileContent(0, 5, "x"))
    record = DataRecord({"data": ("a.tsv", A), "dev": ("-", B)}, 0.1, {"train": "x"}, [])
    assert list(record.changes({"data": A}, tmp_path)) == []
    found = record.changes({"data": B, "dev": A}, tmp_path)
    assert [error.file for error in found] == ["a.tsv", str(tmp_path)]
    record.write(tmp_path / "record.json")
    assert DataRecord.read(tmp_path / "record.json") == record


def manifest(**contents):
    return ShardManifest(tuple(Shard(name, content, "s") for name, content in contents.items()))


def test_changes_of_shards():
    was = manifest(a=A, b=B)
    assert was.change(was) is None
    assert was.content[:2] == (30, 3)
    assert manifest(x=A, y=B).content == was.content, "names do not matter"
    error = was.change(manifest(a=A, b=C))
    assert (error.file, "it had 2 lines" in error.reason) == ("b", True)
    error = was.change(manifest(a=A))
    assert (error.file, error.reason) == (
        "b",
        "this shard is missing, and was there when the run began",
    )
    error = was.change(manifest(a=A, b=B, c=C))
    assert error.reason == "this shard is new, and was not there when the run began"
    error = was.change(manifest(b=B, a=A))
    assert error.reason.startswith("the order of shards has changed")
    assert (error.file, error.reason.endswith("here was a")) == ("b", True)
    error = was.change(manifest(a=B, c=C))
    assert error.reason.endswith("; also b; also c")


def test_a_manifest_survives_its_file(tmp_path):
    encoded = {"file": "a.arrow", "pairs": 5}
    written = replace(manifest(a=A, b=B), encoded=(encoded,))
    written.write(tmp_path / "m.json")
    assert ShardManifest.read(tmp_path / "m.json") == written
    DataRecord({}, 0.0, {}, []).write(tmp_path / "r.json")
    with pytest.raises(DataError, match="not a manifest of shards"):
        ShardManifest.read(tmp_path / "r.json")
    with pytest.raises(DataError, match="not a record of data"):
        DataRecord.read(tmp_path / "m.json")


def test_shards_with_known_stamps_are_not_read_again(monkeypatch):
    asked, told = [], []
    stamps = {"b": "2", "a": "9", "c": "", "d": "4"}
    monkeypatch.setattr(encode_shards, "list_shards", lambda data: list(stamps))
    monkeypatch.setattr(encode_shards, "shard_stamp", stamps.get)
    monkeypatch.setattr(encode_shards, "measure_shard", lambda name: asked.append(name) or C)
    before = ShardManifest((Shard("a", A, "1"), Shard("b", B, "2"), Shard("c", B, "")))
    found = encode_shards.measure_shards(
        make_config({}), before, lambda *args: told.append(args), print
    )
    assert sorted(asked) == ["a", "c", "d"]
    assert told[-1] == ("measuring", 3, 3, 3 * C.lines)
    assert [(s.name, s.content, s.stamp) for s in found.shards] == [
        ("b", B, "2"),
        ("a", C, "9"),
        ("c", C, ""),
        ("d", C, "4"),
    ]


def evaluator_of(monkeypatch, *, labels=False, device="cpu", lengths=(3, 1, 2)):
    """An evaluator of a dev set of a few lengths, whose decoding is recorded."""
    found = object.__new__(Evaluator)
    calls = []
    tgt = np.array(lengths)
    corpus = SimpleNamespace(src_lengths=tgt * 2, tgt_lengths=tgt)
    found.dev = SimpleNamespace(corpus=corpus, rows=np.arange(len(tgt)))
    found.decoded, found.max_tgt_len, found.module = None, 256, None
    found.fabric = SimpleNamespace(device=SimpleNamespace(type=device))
    target = SimpleNamespace(decode=lambda tokens: f"out {tokens}")
    tokens = SimpleNamespace(decoding=lambda: {"max_len": 1, "min_len": 1} if labels else {})
    found.task = SimpleNamespace(labels=labels, target=target, tokens=tokens)

    def collate(corpus, rows):
        return SimpleNamespace(to=lambda device: SimpleNamespace(src=rows, src_lengths=None))

    def decode(module, src, lengths, options):
        calls.append((src.tolist(), options))
        return [[SimpleNamespace(tokens=int(row))] for row in src]

    monkeypatch.setattr(evaluator, "collate", collate)
    monkeypatch.setattr(evaluator, "decode", decode)
    return found, calls


def test_outputs_are_in_the_order_of_the_dev_set(monkeypatch):
    found, calls = evaluator_of(monkeypatch)
    assert found.outputs() == ["out 0", "out 1", "out 2"]
    ((rows, options),) = calls
    assert rows == [0, 2, 1], "the longest first"
    assert (options.beam, options.max_len, options.min_len) == (1, 2 * 3 + 10, 0)
    found.max_tgt_len, found.decoded = 5, 2
    assert found.outputs() == ["out 0", "out 1"]
    assert calls[1][1].max_len == 5


def test_settings_of_a_resumed_run():
    before = make_config({"preset": "luong", "steps": 5, "seed": 3})
    assert runs._resumed_config(before, {"steps": 9}).steps == 9
    for changed, words in (
        ({"preset": "bahdanau"}, "^preset must stay 'luong' when a run goes on"),
        ({"seed": 4}, "^seed must stay 3 when a run goes on, but it is 4"),
        ({"hidden": 64}, "^model must stay {} when a run goes on"),
    ):
        with pytest.raises(ArgumentError, match=words):
            runs._resumed_config(before, changed)


def test_a_run_that_could_not_begin_is_removed(tmp_path):
    console = Console(quiet=True)

    def fail(*, is_new, shards):
        folder = RunFolder(tmp_path / "run")
        folder.create()
        folder.write_config(make_config({}))
        if shards:
            folder.shards.mkdir(exist_ok=True)
            (folder.shards / "a.arrow").write_bytes(b"")
        with (
            pytest.raises(ZeroDivisionError),
            runs._kept_or_discarded(folder, console, is_new=is_new),
        ):
            _ = 1 / 0
        return folder.path.exists()

    assert not fail(is_new=True, shards=False)
    assert fail(is_new=False, shards=False)
    assert fail(is_new=True, shards=True)


def test_tensorboard_must_be_installed(monkeypatch):
    monkeypatch.setattr(runs, "is_installed", lambda name: False)
    runs._check_tensorboard(make_config({}))
    with pytest.raises(ArgumentError, match=r"^tensorboard must be false"):
        runs._check_tensorboard(make_config({"tensorboard": True}))
    monkeypatch.setattr(runs, "is_installed", lambda name: True)
    runs._check_tensorboard(make_config({"tensorboard": True}))


@pytest.mark.parametrize(("long", "said"), [(1, ""), (4, "Warning"), (20, "refused")])
def test_many_examples_that_are_too_long_are_a_warning_or_an_error(tmp_path, long, said):
    pairs = [(f"{i:03} " + "ab " * (9 if i < long else 1), "x y") for i in range(100)]
    config = make_config({"max_src_len": 12, "src_tokenizer": "char", "tgt_tokenizer": "char"})
    folder = RunFolder(tmp_path / "run")
    folder.create()
    notes = []
    if said == "refused":
        with pytest.raises(DataError, match=r"20 of 100 examples are too long.*max_src_len=3"):
            prepare_data(config, folder, pairs, notes.append)
        kept = make_config({**config.model_dump(exclude_unset=True), "max_src_len": 32})
        assert prepare_data(kept, folder, pairs, notes.append).train.dropped == 0
        return
    prepare_data(config, folder, pairs, notes.append)
    (note,) = [note for note in notes if "too long and left out" in note]
    assert note.startswith(said)
    assert ("Keep them with max_src_len=3" in note) == bool(said)
