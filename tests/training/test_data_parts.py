"""Parts of a run's data: records of files, manifests of shards, int8 storage, and evaluations."""

import inspect
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from data.tools import make_corpus, make_pairs
from regard.data.shards import display_data
from regard.data.text_files import FileContent
from regard.errors import ArgumentError, DataError
from regard.training import RunFolder, encode_shards, evaluator, make_config, setup
from regard.training import run as runs
from regard.training.checkpoint import Checkpoint, save_checkpoint
from regard.training.data_record import DataRecord, SourceFile
from regard.training.distillation import check_teacher, distillation_loss
from regard.training.epochs import BatchShapes, Epochs, TrainingBatches
from regard.training.evaluator import Evaluator
from regard.training.int8_storage import (
    dequantize_rows,
    is_quantized,
    quantize_rows,
    weight_shapes,
)
from regard.training.run_data import DataHistory, _once, prepare_data
from regard.training.run_files import RunFiles
from regard.training.shard_manifest import EncodedShard, Shard, ShardManifest

A, B, C = (FileContent(10 * n, n, f"sum {n}") for n in (1, 2, 3))


def test_changes_of_files(tmp_path):
    file = SourceFile("a.tsv", A)
    assert file.change(A) == ""
    assert file.change(A._replace(checksum="other")) == (
        "it has changed since the run began (it has 1 lines and 10 bytes as before, and other "
        "content)"
    )
    assert "it had 1 lines and 10 bytes, and now has 2 lines and 20 bytes" in file.change(B)
    assert "and now has 5 pairs" in file.change(FileContent(0, 5, "x"))
    record = DataRecord({"data": file, "dev": SourceFile("-", B)}, 0.1, {"train": "x"}, [])
    assert not record.dev_is_older
    stdin = tmp_path / "stdin"
    assert list(record.changes({"data": A}, stdin)) == []
    found = list(record.changes({"data": B, "dev": A}, stdin))
    assert [error.file for error in found] == ["a.tsv", str(stdin)]
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
    assert error.reason.endswith("; also missing: b; also new: c")


def test_a_manifest_survives_its_file(tmp_path):
    encoded = EncodedShard("a.arrow", 5, 1, 2, 99, 7)
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


def test_large_matrices_are_stored_in_int8():
    assert is_quantized(torch.zeros(64, 64))
    assert not is_quantized(torch.zeros(64 * 64))
    assert not is_quantized(torch.zeros(4, 4))
    matrix = torch.linspace(-1, 1, 64 * 64).view(64, 64)
    matrix[3] = 0.0
    stored = quantize_rows({"m": matrix, "v": torch.ones(3), "n": torch.tensor([5])})
    (scales,) = [name for name in stored if name not in ("m", "v", "n")]
    assert (stored["m"].dtype, stored["v"].dtype, stored["n"].dtype) == (
        torch.int8,
        torch.float16,
        torch.int64,
    )
    assert stored["m"][0].min() == -127
    assert stored[scales].shape == (64,)
    found = dequantize_rows(stored)
    assert found.keys() == {"m", "v", "n"}
    error = (found["m"] - matrix).abs().amax(dim=1)
    assert bool((error <= stored[scales] / 2 * 1.001).all())
    assert bool((found["m"][3] == 0).all())
    with pytest.raises(ValueError, match="'m' is in int8 and lacks a scale"):
        weight_shapes({"m": (64, 64)}, {"m"})
    with pytest.raises(ValueError, match="lacks a scale for each of its rows"):
        weight_shapes({"m": (64, 64), scales: (63,)}, {"m"})
    with pytest.raises(ValueError, match="are scales of no tensor in int8"):
        weight_shapes({"m": (64, 64), scales: (64,)}, set())


def test_the_loss_of_a_student_by_hand():
    logits = torch.tensor([[0.0, math.log(3.0)]]).double()  # 1/4 and 3/4
    taught = torch.tensor([[0.5, 0.5]]).double()
    low, high = math.log(0.25), math.log(0.75)
    loss = distillation_loss(logits, torch.tensor([1]), taught, 0.3, 0.2)
    hard = 0.8 * high + 0.2 * (low + high) / 2
    assert loss.item() == pytest.approx(-0.3 * (low + high) / 2 - 0.7 * hard)
    none = distillation_loss(logits, torch.tensor([1]), taught, 0.3, 0.2, torch.tensor([False]))
    assert none.item() == 0.0


def test_settings_of_students(tmp_path):
    check_teacher(make_config({}))
    with pytest.raises(ArgumentError, match=r"^teacher_weight must be left out"):
        check_teacher(make_config({"teacher_weight": 0.4}))
    with pytest.raises(ArgumentError, match=r"^teacher must name run folders"):
        check_teacher(make_config({"teacher": str(tmp_path)}))
    folder = RunFolder(tmp_path / "teacher")
    folder.create()
    folder.write_config(make_config({}))
    named = {"teacher": str(folder.path)}
    check_teacher(make_config(named | {"teacher_weight": 0.4}))
    with pytest.raises(ArgumentError, match=r"^rdrop must be 0"):
        check_teacher(make_config(named | {"rdrop": 1.0}))
    with pytest.raises(ArgumentError, match=r"^teacher must be given to presets that write"):
        check_teacher(make_config(named | {"preset": "classifier-rnn"}))


def test_padding_of_few_shapes(tmp_path):
    corpus = make_corpus(tmp_path / "c.arrow", make_pairs(12))
    shapes = BatchShapes(max_src_len=64, max_tgt_len=64, sentences=4)
    options = {"max_tokens": None, "max_sentences": 4, "seed": 1}
    epochs = Epochs(corpus, **options, shapes=shapes)
    batches = epochs[0].batches
    found = [shapes.of_batch(corpus, batches[i]) for i in range(len(batches))]
    size = sum(shape.rows * (shape.src_len + shape.tgt_len) for shape in found)
    real = int(corpus.src_lengths.sum() + corpus.tgt_lengths.sum()) + 12
    assert epochs.padding_share() == pytest.approx(1 - real / size)
    assert 0 < Epochs(corpus, **options).padding_share() < epochs.padding_share()
    assert epochs[0] is epochs[0]
    share = TrainingBatches(epochs, rank=4, processes=5).take(0, 0)[0][0]
    assert (len(share.rows), share.weight) == (1, 0.0), "a stand-in is one example"


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


def test_labels_are_one_token(monkeypatch):
    found, calls = evaluator_of(monkeypatch, labels=True)
    found.outputs()
    options = calls[0][1]
    assert (options.beam, options.max_len, options.min_len) == (1, 1, 1)


def test_sources_that_are_decoded_at_once(monkeypatch):
    for device, sizes in (("cpu", [128, 128, 44]), ("cuda", [300])):
        found, calls = evaluator_of(monkeypatch, device=device, lengths=[2] * 300)
        found.outputs()
        assert [len(rows) for rows, _ in calls] == sizes


@pytest.mark.plain  # what stands in for batches and outputs has other types
def test_the_dev_loss_of_one_token(monkeypatch):
    """A single target token counts as one, and maps are asked for once, of a sample."""
    found, _ = evaluator_of(monkeypatch)
    found.dev.scored = np.arange(1)
    asked = []

    class Model:
        def __call__(self, src, lengths, tgt_in, *, keep, need_weights):
            asked.append(need_weights)
            return SimpleNamespace(logits=torch.zeros(int(keep.sum()), 4), maps={})

    def collate(corpus, rows):
        tgt = torch.tensor([[2, 0]])
        sides = SimpleNamespace(src=None, src_lengths=None, tgt_in=tgt, tgt_out=tgt)
        return SimpleNamespace(to=lambda device: sides)

    monkeypatch.setattr(evaluator, "collate", collate)
    found.module, found.batch_size = Model(), 1
    found.task = SimpleNamespace(sort_lengths=lambda corpus: np.array([1]), has_sources=True)
    loss, health = found._loss_and_health()
    assert loss == pytest.approx(math.log(4))
    assert health is None
    found.task.sort_lengths, found.dev.scored = lambda corpus: np.array([1, 1]), np.arange(2)
    asked.clear()
    assert found._loss_and_health()[0] == pytest.approx(math.log(4))
    assert asked == [False, False, True]
    found.task.has_sources = False
    asked.clear()
    found._loss_and_health()
    assert asked == [False, False]


def files(tmp_path, **settings):
    return RunFiles(make_config(settings), tmp_path / "stdin", None, lambda text: None)


def test_names_of_files(tmp_path):
    data = tmp_path / "a.tsv"
    data.write_text("a\tb\n")
    found = files(tmp_path, data=str(data), dev="dev.tsv")
    assert found.named() == {"data": display_data(str(data)), "dev": "dev.tsv"}
    assert list(found.contents) == ["data"], "those that are there"
    assert (found.name_of("train"), found.name_of("dev")) == (str(data), "dev.tsv")
    assert files(tmp_path, data="-").name_of("dev") == "stdin"
    assert files(tmp_path).name_of("train") == "pairs"
    assert found.pairs_checksum is None
    given = RunFiles(make_config({}), tmp_path / "stdin", [("a", "b")], lambda text: None)
    assert given.named() == {"pairs": "pairs"}
    assert given.contents["pairs"][:2] == (0, 1)
    missing = files(tmp_path)
    with pytest.raises(ArgumentError, match=r"^data must be a file of pairs"):
        list(missing.read("train", lambda place: None))


def test_changes_of_shards_are_told_once(tmp_path):
    record = DataRecord({"data": SourceFile("x", A)}, 0.0, {}, [])
    now = manifest(a=B)
    config = make_config({"data": "x"})
    found = RunFiles(config, tmp_path, None, lambda text: None, now, manifest(a=A))
    assert [error.file for error in found.changes(record)] == ["a"]
    begun_before = RunFiles(config, tmp_path, None, lambda text: None, now, None)
    assert [error.file for error in begun_before.changes(record)] == ["x"]


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


def test_restarts_of_torchrun(tmp_path, monkeypatch):
    for name in ("RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    folder, config, restarted = RunFolder(tmp_path / "run"), make_config({}), runs._is_restart
    assert not restarted(folder, config)
    folder.create()
    folder.write_config(config)
    assert not restarted(folder, config)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert restarted(folder, config)
    monkeypatch.setenv("RANK", "1")
    assert not restarted(folder, config), "the first has written no checkpoint yet"


def test_changes_of_data_are_accepted_or_raised(tmp_path):
    said, folder = [], RunFolder(tmp_path / "run")
    folder.create()
    record = DataRecord({"data": SourceFile("x", A), "dev": SourceFile("-", B)}, 0.0, {}, [])
    history = DataHistory(folder, record, accept_changed=False, say=said.append)
    error = DataError("x", None, "it has changed", "mend it")
    with pytest.raises(DataError, match="it has changed"):
        history.accept(error)
    accepting = DataHistory(folder, record, accept_changed=True, say=said.append)
    after = accepting.accept(error)
    assert (after.changed, after.record) == (False, None), "nothing was learned yet"
    save_checkpoint(folder.checkpoints, 1, Checkpoint({"w": torch.ones(1)}, {}))
    after = accepting.accept(error)
    assert (after.changed, after.record) == (True, record)
    assert said[0] != said[1]
    said.clear()
    same = files(tmp_path, data=str(tmp_path / "missing"))
    assert history.after_files(same) is history
    assert len(said) == 2, "both files are gone"
    assert str(tmp_path / "stdin") in said[1]
    assert not history.whole_corpora()


def test_sentences_are_said_once():
    said = []
    say = _once(said.append)
    for sentence in ("a", "", "b", "a"):
        say(sentence)
    assert said == ["a", "b"]
    defaults = inspect.unwrap(prepare_data).__kwdefaults__
    assert (defaults["accept_changed"], defaults["executor"]) == (False, None)


class Rows(list):
    """Examples of a file, with what was noticed when it was read."""

    note = "noted"

    def __init__(self, bad):
        self.bad = SimpleNamespace(total=bad)


def test_bad_lines_are_told(tmp_path):
    for bad, told in ((0, 0), (2, 1)):
        said = []
        found = RunFiles(make_config({"data": "x"}), tmp_path, None, said.append)
        assert list(found.read_shard("x", lambda place, bad=bad: Rows(bad))) == []
        assert said[0] == "noted"
        assert len([sentence for sentence in said[1:] if sentence]) == told


def test_facts_that_defaults_follow_from():
    corpus = SimpleNamespace(src_lengths=np.array([3, 5]), tgt_lengths=np.array([1, 2]))
    told = SimpleNamespace(facts=SimpleNamespace(scales_batches=False))
    task = SimpleNamespace(input=told, has_sources=True, labels=("a", "b"))
    fabric = SimpleNamespace(device=torch.device("cuda"))
    facts = inspect.unwrap(setup._facts)
    # each target has an end of sentence: 8 + 3 + 2 tokens of two pairs
    assert facts(corpus, task, fabric) == (2, 6.5, True, False, True, True)
    empty = SimpleNamespace(src_lengths=np.array([], int), tgt_lengths=np.array([], int))
    fabric.device = torch.device("cpu")
    assert facts(empty, task, fabric) == (0, 0.0, False, False, True, True)


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
