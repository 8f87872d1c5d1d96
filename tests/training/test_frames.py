"""Runs whose sources are vectors, up to their first steps."""

import io
import json
import os

import numpy as np
import pytest
import torch
from rich.console import Console

import regard
from regard.data import FrameScaler, Tokenizer, collate, frame_tables
from regard.errors import ArgumentError, DataError
from regard.layers import LearnedPositions, SinusoidalPositions
from regard.models import (
    COPY_PRESETS,
    PRESETS,
    STORY_PRESETS,
    TAG_PRESETS,
    TEXT_PRESETS,
    VectorInput,
)
from regard.tasks import open_task
from regard.training import RunFolder, make_config, start_run
from regard.training.epochs import BatchShapes
from regard.training.setup import check_settings, prepare
from sounds import FEATURES, spoken, write_jsonl, write_npy

TINY = {
    "size": "tiny",
    "hidden": 32,
    "embed": 16,
    "batch_sentences": 16,
    "device": "cpu",
    "precision": "32",
    "steps": 2,
}
REFUSED = (*COPY_PRESETS, *TAG_PRESETS, *TEXT_PRESETS, *STORY_PRESETS)


def task_of(tmp_path, data, **settings):
    """Everything that a run needs before its first step, and what it has said."""
    given = {} if isinstance(data, list) else {"data": str(data)}
    config = make_config({**TINY, **given, **settings})
    check_settings(config)
    folder = RunFolder(tmp_path / "run")
    folder.create()
    said = io.StringIO()
    pairs = data if isinstance(data, list) else None
    return prepare(config, folder, Console(file=said, width=200), pairs), said.getvalue()


def refused(tmp_path, rows, **settings):
    config = make_config({**TINY, **settings})
    with pytest.raises((ArgumentError, DataError)) as caught:
        start_run(config, tmp_path / "run", pairs=rows, quiet=True)
    assert not (tmp_path / "run").exists()
    return str(caught.value)


@pytest.mark.parametrize("form", ["jsonl", "npy", "pairs"])
def test_vectors_are_recognised_and_said_so(tmp_path, form):
    rows = spoken(80)
    write = {"jsonl": write_jsonl, "npy": write_npy}.get(form)
    data = rows if write is None else write(tmp_path / f"{form}.tsv", rows)
    if form == "jsonl":
        data = data.rename(tmp_path / "a.jsonl")
    task, said = task_of(tmp_path, data)
    why = "names of .npy files" if form == "npy" else "tables of numbers"
    assert f"source: vectors of 5 numbers, because the sources are {why}." in said
    assert "brought to mean 0 and deviation 1" in said
    assert isinstance(task.evaluator.task.encoders.source, FrameScaler)
    every = np.concatenate(
        [task.batches.epochs.corpus.frames(i) for i in range(len(task.batches.epochs.corpus))]
    )
    np.testing.assert_allclose(every.mean(axis=0), np.zeros(FEATURES), atol=1e-5)
    np.testing.assert_allclose(every.std(axis=0), np.ones(FEATURES), rtol=1e-5)
    batch = collate(task.batches.epochs.corpus, np.arange(7))
    loss = task.learner.objective(batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
    assert loss.isfinite()


def test_the_same_sources_are_held_out_whatever_their_order(tmp_path):
    rows = spoken(80)
    first, _ = task_of(tmp_path / "a", rows)
    second, _ = task_of(tmp_path / "b", rows[::-1])
    assert sorted(first.evaluator.dev.sources) == sorted(second.evaluator.dev.sources)
    assert len(first.evaluator.dev.sources) + len(first.batches.epochs.corpus) == 80


def test_numbers_stay_as_they_are_if_that_is_asked_for(tmp_path):
    rows = spoken(80)
    task, said = task_of(tmp_path, rows, scale_vectors=False, dev=None)
    assert "mean 0" not in said
    given = np.sort(np.concatenate([table for table, _ in rows]), axis=None)
    corpora = (task.batches.epochs.corpus, task.evaluator.dev.corpus)
    kept = [corpus.frames(i) for corpus in corpora for i in range(len(corpus))]
    np.testing.assert_array_equal(np.sort(np.concatenate(kept), axis=None), given)


def test_one_number_for_each_frame_must_be_asked_for(tmp_path):
    rows = [([float(i), i + 1.0, 2.0], "up") for i in range(60)]
    assert refused(tmp_path, rows).startswith(
        "pairs, line 1: the source must be a string, but it is [0.0, 1.0, 2.0]: convert it to a "
        "string, or have it read by src_tokenizer=vectors"
    )
    task, said = task_of(tmp_path, rows, src_tokenizer="vectors")
    assert "source: vectors of 1 number, because it was asked for." in said
    assert task.batches.epochs.corpus.features == 1


@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in REFUSED])
@pytest.mark.parametrize("stack", [1, 2])
def test_presets_read_vectors(preset, stack):
    frames = FrameScaler(5, stack, (0.0,) * 5, (1.0,) * 5)
    target = Tokenizer.train("space", ["a b c"])
    config = make_config({"preset": preset, "size": "tiny"})
    model = open_task(config, frames, target).build_model().eval()
    adapter = model.encoder.embedding
    assert isinstance(adapter, VectorInput)
    text = PRESETS[preset](11, target.vocab_size, "tiny").encoder.embedding
    assert type(adapter.positions) is type(text.positions)
    assert adapter.dropout.p == text.dropout.p
    src, lengths = torch.randn(3, 11, 5), torch.tensor([11, 7, 2])
    for row, length in enumerate(lengths.tolist()):
        src[row, length:] = torch.nan
    out = model(src, lengths, torch.tensor([[1, 4, 5]] * 3), need_weights=True)
    assert out.logits.isfinite().all()
    if "cross" in out.maps:
        assert out.maps["cross"][0].shape[-1] == -(-11 // stack)


def test_positions_are_those_that_the_preset_has():
    frames, target = FrameScaler(5, 1, (0.0,) * 5, (1.0,) * 5), Tokenizer.train("space", ["a"])

    def positions(**settings):
        config = make_config({"size": "tiny", **settings})
        return open_task(config, frames, target).build_model().encoder.embedding.positions

    assert isinstance(positions(preset="transformer"), SinusoidalPositions)
    assert isinstance(positions(preset="conv", max_len=300), LearnedPositions)
    assert positions(preset="bahdanau") is None


@pytest.mark.parametrize("asked", [{"src_tokenizer": "vectors"}, {}], ids=["asked", "found"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"preset": "pointer"}, "preset must be one that reads vectors, but it is pointer, which"),
        ({"src_case": "lower"}, "src_case must be left out where sources are vectors, but it is"),
        ({"shared_vocab": True}, "shared_vocab must be left out where sources are vectors"),
        ({"bpe_dropout": 0.1}, "bpe_dropout must be left out where sources are vectors"),
    ],
)
def test_settings_for_text_are_refused(tmp_path, settings, words, asked):
    assert refused(tmp_path, spoken(60), **settings, **asked).startswith(words)


def test_settings_that_look_at_files_or_columns_are_refused_before_these_are_read(tmp_path):
    asked = {"src_tokenizer": "vectors"}
    said = refused(tmp_path, spoken(60), src_vectors="none.txt", **asked)
    assert said.startswith("src_vectors must be left out where sources are vectors")
    said = refused(tmp_path, spoken(60), tied="all", **asked)
    assert said.startswith("tied must not be 'all' where sources are vectors")
    said = refused(tmp_path, spoken(60), features=True, **asked)
    assert said.startswith("features must be left out where sources are vectors")


def test_settings_for_vectors_are_refused_for_text(tmp_path):
    rows = [(f"word{i}", "x") for i in range(60)]
    said = "stack must be left out where sources are text, but it is 2: add src_tokenizer=vectors"
    assert refused(tmp_path, rows, stack=2).startswith(said)
    assert refused(tmp_path, rows, stack=2, src_tokenizer="char").startswith(said)
    assert refused(tmp_path, rows, scale_vectors=False).startswith("scale_vectors must be left out")
    said = refused(tmp_path, rows, src_tokenizer="vectors")
    assert said.startswith("pairs, line 1: word0: a source must be numbers, or the name of a .npy")
    said = refused(tmp_path, None, data="none.tsv", preset="lm-rnn", src_tokenizer="vectors")
    assert said.startswith("src_tokenizer must be auto for texts")


def test_features_beside_vectors_are_refused(tmp_path):
    rows = [{"src": table, "tgt": text, "features": "V"} for table, text in spoken(60)]
    said = refused(tmp_path, rows)
    assert "the source is vectors, which no features join, but it has 'V'" in said
    task, _ = task_of(tmp_path, rows, features=False)
    assert isinstance(task.evaluator.task.encoders.source, FrameScaler)


def test_dev_pairs_are_read_from_their_own_folder_and_must_have_the_same_width(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    train = write_npy(tmp_path / "a" / "train.tsv", spoken(40))
    dev = write_npy(tmp_path / "b" / "dev.tsv", spoken(20, seed=2))
    task, _ = task_of(tmp_path, train, dev=str(dev))
    assert len(task.evaluator.dev.corpus) == 20
    narrow = [(table[:, :3], text) for table, text in spoken(20)]
    other = write_jsonl(tmp_path / "narrow.jsonl", narrow)
    with pytest.raises(DataError) as caught:
        task_of(tmp_path / "x", train, dev=str(other))
    assert str(caught.value).startswith(
        f"{other}, line 1: each frame of the source has 3 numbers, where 5 are expected"
    )


def test_bad_sources_are_counted_and_left_out(tmp_path):
    rows = [{"src": table.tolist(), "tgt": text} for table, text in spoken(60)]
    rows[3]["src"] = [[1.0, 2.0]]
    rows[8]["src"] = [[1.0] * 5, [1.0] * 4]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    with pytest.raises(DataError, match="line 4: each frame of the source has 2 numbers"):
        task_of(tmp_path / "x", tmp_path / "a.jsonl")
    task, said = task_of(tmp_path, tmp_path / "a.jsonl", skip_bad=True)
    assert len(task.batches.epochs.corpus) + len(task.evaluator.dev.corpus) == 58
    assert "2 bad lines were left out (1 other number of features, 1 ragged)" in said


def test_longer_sources_are_left_out_and_counted(tmp_path):
    with pytest.raises(DataError, match=r"of 80 examples are too long.* with max_src_len="):
        task_of(tmp_path / "x", spoken(80), max_src_len=6)
    task, said = task_of(tmp_path, spoken(80), max_src_len=6, skip_bad=True)
    assert "too long and left out" in said
    assert task.batches.epochs.corpus.src_lengths.max() == 6


def test_batches_keep_few_shapes(tmp_path):
    task, _ = task_of(tmp_path, spoken(80))
    config = task.config
    shapes = BatchShapes(config.max_src_len, config.longest_tgt + 1, None, config.batch_sentences)
    rows = task.batches.epochs[0].batches[0]
    shape = shapes.of_batch(task.batches.epochs.corpus, rows)
    batch = collate(task.batches.epochs.corpus, rows, shape)
    assert batch.src.shape == (shape.rows, shape.src_len, FEATURES)
    assert batch.src.shape[1] % 4 == 0


def test_attention_is_measured_over_joined_frames(tmp_path):
    rows = [(table, text) for table, text in spoken(400) if len(table) == 9]
    task, _ = task_of(tmp_path, rows, stack=2, max_tgt_len=9)
    health = task.evaluator.evaluate().health
    assert health.even == pytest.approx(1 / 5)  # nine frames in pairs
    assert health.last == 0.0  # there is no </s> to collapse to


def test_a_run_finds_again_what_it_has_learned_of_its_sources(tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", spoken(80))
    first, _ = task_of(tmp_path, data)
    again, said = task_of(tmp_path, data)
    assert "because" not in said
    assert again.evaluator.task.encoders.source == first.evaluator.task.encoders.source
    assert again.batches.epochs.corpus.fingerprint == first.batches.epochs.corpus.fingerprint


def counted_tables(monkeypatch):
    """How many tables were parsed so far, in a list of one."""
    parsed, parse = [0], frame_tables.as_frames

    def counting(value):
        parsed[0] += 1
        return parse(value)

    monkeypatch.setattr(frame_tables, "as_frames", counting)
    return parsed


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_jsonl, write_npy])
def test_each_source_is_parsed_once_before_the_first_step(tmp_path, monkeypatch, write):
    data, dev = (write(tmp_path / f"{name}.tsv", spoken(80)) for name in ("data", "dev"))
    if write is write_jsonl:
        data, dev = (path.rename(path.with_suffix(".jsonl")) for path in (data, dev))
    parsed = counted_tables(monkeypatch)
    task, _ = task_of(tmp_path / "a", data)
    assert parsed == [80]
    assert len(task.batches.epochs.corpus) + len(task.evaluator.dev.corpus) == 80
    task_of(tmp_path / "a", data)  # looks whether they are still the same
    assert parsed == [160]
    parsed[0] = 0
    task, _ = task_of(tmp_path / "b", data, dev=str(dev))
    assert parsed == [160]
    assert (len(task.batches.epochs.corpus), len(task.evaluator.dev.corpus)) == (80, 80)
    left = {path.name for path in (tmp_path / "b" / "run" / "data").iterdir()}
    corpora = {"train.arrow", "train.arrow.json", "dev.arrow", "dev.arrow.json"}
    assert left == {*corpora, "sources.json"}


def test_pairs_are_encoded_as_if_they_were_read_again_each_time(tmp_path, monkeypatch):
    data = write_jsonl(tmp_path / "a.jsonl", spoken(80))
    once, _ = task_of(tmp_path / "a", data)
    cache = "regard.training.run_files.write_frame_cache"
    monkeypatch.setattr(cache, lambda pairs, path: list(pairs))
    again, _ = task_of(tmp_path / "b", data)
    for one, other in (
        (once.batches.epochs.corpus, again.batches.epochs.corpus),
        (once.evaluator.dev.corpus, again.evaluator.dev.corpus),
    ):
        assert one.path.read_bytes() == other.path.read_bytes()


@pytest.mark.parametrize("with_dev", [False, True])
def test_other_numbers_in_a_named_file_are_noticed(tmp_path, with_dev):
    data = write_npy(tmp_path / "a.tsv", spoken(80))
    dev = {"dev": str(write_npy(tmp_path / "b.tsv", spoken(20, seed=3)))} if with_dev else {}
    first, _ = task_of(tmp_path, data, **dev)
    source = tmp_path / ("b" if with_dev else "a") / "7.npy"
    before = source.stat()
    os.utime(source, (1, 1))  # as a copy may have it
    again, said = task_of(tmp_path, data, **dev)
    assert "built again" not in said
    assert again.batches.epochs.corpus.fingerprint == first.batches.epochs.corpus.fingerprint
    np.save(source, np.load(source) + 1)
    os.utime(source, (1, 1))
    assert source.stat().st_size == before.st_size
    with pytest.raises(DataError, match="the vectors that it names have changed"):
        task_of(tmp_path, data, **dev)


def test_a_named_file_that_is_gone_is_a_sentence(tmp_path):
    data = write_npy(tmp_path / "a.tsv", spoken(80))
    task_of(tmp_path, data)
    (tmp_path / "a" / "7.npy").unlink()
    with pytest.raises(DataError, match=r"a.tsv, line 8: .*7.npy: there is no such file"):
        task_of(tmp_path, data)


def test_numbers_of_pairs_in_memory_are_known_too(tmp_path):
    names = write_npy(tmp_path / "a.tsv", spoken(80))
    rows = [
        (str(tmp_path / name), text)
        for name, text in (line.split("\t") for line in names.read_text().splitlines())
    ]
    task_of(tmp_path, rows)
    np.save(tmp_path / "a" / "7.npy", spoken(1, seed=9)[0][0])
    with pytest.raises(DataError, match="the vectors that it names have changed"):
        task_of(tmp_path, rows)


@pytest.mark.slow
def test_python_pairs_are_trained_on(tmp_path):
    rows = [(torch.from_numpy(table), text) for table, text in spoken(80)]
    model = regard.fit(rows, **TINY, quiet=True, output=tmp_path / "run")
    assert isinstance(model.source, FrameScaler)
