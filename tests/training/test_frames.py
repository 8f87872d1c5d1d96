"""Runs whose sources are vectors, up to their first steps."""

import io
import os

import numpy as np
import pytest
import torch
from rich.console import Console

from regard.data import BadLines, FrameScaler, Tokenizer, collate
from regard.data.pairs import RunColumns
from regard.errors import ArgumentError, DataError
from regard.models import (
    COPY_PRESETS,
    PRESETS,
    STORY_PRESETS,
    TAG_PRESETS,
    TEXT_PRESETS,
    VectorInput,
)
from regard.symbols import SYMBOLS
from regard.tasks import open_task
from regard.tasks.settings import SourceFiles
from regard.training import RunFolder, make_config
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


def test_columns_of_numbers_are_one_source_each_with_a_scale_of_its_own(tmp_path):
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(120, 3)) * [1, 100, 0.01] + [5, -700, 0.3]
    labels = np.where(rows @ [1, 0.01, 0] > -2, "up", "down")
    lines = [f"{i},{','.join(map(str, row))},{labels[i]}" for i, row in enumerate(rows)]
    (tmp_path / "a.csv").write_text("\n".join(["id,p q,r,s,kind", *lines, ""]))
    made, said = task_of(tmp_path, tmp_path / "a.csv", preset="classifier-rnn", linear=True)
    assert "the numbers of 3 columns (p q, r, s) and the target is kind" in said
    task, corpus = made.evaluator.task, made.batches.epochs.corpus
    assert task.settings.columns == ("*", "kind")
    every = np.stack([corpus.frames(i)[:, 0] for i in range(len(corpus))])
    np.testing.assert_allclose(every.mean(axis=0), np.zeros(3), atol=1e-4)
    np.testing.assert_allclose(every.std(axis=0), np.ones(3), rtol=1e-4)
    (row,) = task.input.rows([{"s": 0.3, "kind": "?", "r": "-700", "p q": 5}])
    np.testing.assert_allclose(row, task.input.rows([[5, -700, 0.3]])[0])
    assert task.input.labels(row) == ["p q", "r", "s"]
    bag = made.learner.module.classifier.bag  # the simple way, which has a share of the answer
    votes = bag(torch.from_numpy(every[..., None]), None)[:, len(SYMBOLS) :].argmax(dim=1)
    gold = torch.tensor([int(corpus.tgt(i)[0]) - len(SYMBOLS) for i in range(len(corpus))])
    assert (votes == gold).float().mean() > 0.9
    made.learner.module.classifier.encoder.eval()
    for share in (0.0, 1.0):
        bag.share.fill_(share)
        found = made.learner.module.eval().encode(torch.from_numpy(every[..., None]), None)
        logits = made.learner.module.start(found).logits[:, len(SYMBOLS) :]
        assert ((logits.argmax(dim=1) == votes).all()) == (share == 1.0)
    with pytest.raises(ArgumentError, match="have frames as sources to be exported"):
        task.input.graph_inputs()
    (tmp_path / "b.csv").write_text("kind,s,r,p q\n?,0.3,-700,5\n")
    files = SourceFiles([str(tmp_path / "b.csv")], RunColumns(("*", "kind")), 99, BadLines(), None)
    np.testing.assert_allclose(task.input.rows([*task.input.read(files)])[0], row)
    for bad, why in (({"r": 1, "s": 2}, "no column 'p q'"), ([1, 2], "3 columns are expected")):
        with pytest.raises(DataError, match=why):
            task.input.rows([bad])


@pytest.mark.sample(12)
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
