"""Runs whose sources are vectors, up to their first steps."""

import io
import os

import numpy as np
import pytest
import torch
from rich.console import Console

from regard.data import FrameScaler, Tokenizer, collate
from regard.errors import DataError
from regard.models import (
    COPY_PRESETS,
    PRESETS,
    STORY_PRESETS,
    TAG_PRESETS,
    TEXT_PRESETS,
    VectorInput,
)
from regard.tasks import open_task
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
