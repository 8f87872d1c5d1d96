"""Language models train as every model does, on texts."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from rich.console import Console

from chips import bf16_autocast
from regard.data import collate
from regard.errors import ArgumentError
from regard.models import TEXT_PRESETS
from regard.symbols import BOS, EOS
from regard.training import RunFolder, make_config
from regard.training.config import check_model
from regard.training.losses import Objective
from regard.training.reporting import example_traces
from regard.training.setup import prepare
from training.tools import train_prepared

BRIEF = {"batch_sentences": 16, "steps": 6, "warmup": 5, "precision": "32", "device": "cpu"}
SIZES = {"lm-transformer": {"dim": 16, "heads": 2, "feed_forward": 16, "layers": 1}}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Each word tells what comes after it, and lines have different lengths."""
    draw, path = random.Random(1), tmp_path_factory.mktemp("texts") / "texts.txt"
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    lines = []
    for _ in range(200):
        first, count = draw.randrange(7), draw.randint(3, 9)
        lines.append(" ".join(words[(first + i) % 7] for i in range(count)))
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def make_text_task(texts, tmp_path):
    """Everything that a run on texts needs before its first step."""

    def make(preset, **settings):
        sizes = SIZES.get(preset, {"hidden": 16, "embed": 8})
        given = {"data": str(texts), "preset": preset, "tgt_tokenizer": "space", **BRIEF}
        folder = RunFolder(tmp_path / "run")
        folder.create()
        return prepare(make_config({**given, **sizes, **settings}), folder, Console(quiet=True))

    return make


@pytest.mark.parametrize("preset", TEXT_PRESETS)
def test_dev_perplexity_is_that_of_single_steps(make_text_task, preset):
    task = make_text_task(preset)
    result = task.evaluator.evaluate()
    nats, tokens = 0.0, 0
    task.learner.module.eval()
    for references in task.evaluator.dev.references:
        (line,) = references
        ids = [BOS, *task.evaluator.task.target.encode(line), EOS]
        memory = task.learner.module.encode(torch.tensor([[EOS]]), torch.tensor([1]))
        state = task.learner.module.start(memory)
        for token, following in pairwise(ids):
            logits, state, _ = task.learner.module.step(torch.tensor([token]), state)
            nats -= logits[0].double().softmax(dim=0)[following].log().item()
            tokens += 1
    assert result.score == result.metrics["perplexity"]
    assert result.score == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert result.outputs == []


@pytest.mark.slow
def test_perplexity_falls_and_the_best_is_kept(make_text_task):
    task = make_text_task("lm-rnn", steps=150, eval_every=50, lr=2e-2, dropout=0.0)
    before = task.evaluator.evaluate().score
    progress = train_prepared(task)
    rows = task.folder.read_metrics()
    print(before, [row["dev_perplexity"] for row in rows])
    assert before > 5
    # a word tells the next one, but not whether the line ends
    assert min(row["dev_perplexity"] for row in rows) == progress.best[0][0] < 2.5
    assert not task.evaluator.metric.higher_is_better


def test_texts_are_held_out_by_their_own_hash(make_text_task):
    task = make_text_task("lm-rnn")
    assert 5 <= len(task.evaluator.dev.corpus) <= 40
    assert len(task.evaluator.dev.corpus) + len(task.batches.epochs.corpus) == 200
    assert set(task.evaluator.dev.sources) == {""}
    assert task.evaluator.task.encoders.source.fingerprint == task.evaluator.task.target.fingerprint


def test_joined_lines_have_eos_between_them(make_text_task):
    task = make_text_task("lm-rnn", join_lines=4)
    assert len(task.evaluator.dev.corpus) + len(task.batches.epochs.corpus) == 50
    assert (task.batches.epochs.corpus.tgt(0) == EOS).sum() == 3
    assert task.evaluator.dev.references[0][0].count("\n") == 3
    assert "\n" not in "".join(
        task.evaluator.task.target.tokens(range(task.evaluator.task.target.vocab_size))
    )


def test_the_report_says_how_likely_a_text_is(make_text_task):
    traces = example_traces(make_text_task("lm-self-attentive").evaluator, [])
    assert len(traces) == 4
    assert all(trace.notes[0].startswith("perplexity ") for trace in traces)
    assert {m.kind for trace in traces for m in trace.maps} == {"decoder-history"}


@pytest.mark.parametrize("preset", TEXT_PRESETS)
def test_defaults_of_language_models(preset):
    config = make_config({"preset": preset})
    assert (config.label_smoothing, config.metric, config.beam) == (0.0, "perplexity", 1)
    assert make_config({"preset": preset, "label_smoothing": 0.2}).label_smoothing == 0.2
    assert make_config({"preset": preset, "beam": 3}, config).beam == 3
    assert make_config({}).label_smoothing == 0.1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metric": "bleu"}, "metric must be perplexity or loss for texts, but it is 'bleu'"),
        ({"tgt": "x.txt"}, "tgt must be left out for texts"),
        ({"columns": "0,1"}, "columns must be left out"),
        ({"src_tokenizer": "char"}, "src_tokenizer must be auto for texts"),
        ({"preset": "bahdanau", "join_lines": 2}, "join_lines must be 1 for pairs"),
    ],
)
def test_settings_without_a_meaning_are_refused(settings, words):
    with pytest.raises(ArgumentError, match=words):
        check_model(make_config({"preset": "lm-rnn", **settings}))


@pytest.mark.parametrize("preset", TEXT_PRESETS)
def test_bf16_keeps_the_loss_in_float32(make_text_task, preset):
    task = make_text_task(preset, dropout=0.0)
    batch = collate(task.batches.epochs.corpus, np.arange(16))
    objective = Objective(task.learner.module)
    parts = (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
    expected = objective.double()(*parts)
    with bf16_autocast():
        found = objective.float()(*parts)
    assert found.dtype == torch.float32
    # a sum of some hundred terms that bf16 itself could not hold to a tenth
    assert expected > 200
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=0.0)
