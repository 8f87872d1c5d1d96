"""Language models train as every model does, on texts."""

import math
import random
from itertools import pairwise

import pytest
import torch
from rich.console import Console

from regard.models import TEXT_PRESETS
from regard.symbols import BOS, EOS
from regard.training import RunFolder, make_config
from regard.training.setup import prepare

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


@pytest.mark.sample(1)
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
