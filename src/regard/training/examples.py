"""The four dev examples whose maps a report follows through training."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from regard.data import FrameScaler, Tokenizer, collate
from regard.decoding import Hypothesis, force_decode
from regard.seeing.trace import KINDS, SIDES, Map, Text, Token, Trace, TraceError
from regard.symbols import EOS
from regard.training.dev import LARGEST
from regard.training.task import Task

COUNT: Final = 4
#: tokens of a side, so that a map can be read
LONGEST: Final = 40


def chosen(task: Task) -> list[int]:
    """Sources of the dev set: the first that fit a picture; if too few do, the shortest."""
    corpus, rows = task.dev.corpus, task.dev.rows[: task.config.eval_pairs]
    size = np.maximum(corpus.src_lengths[rows], corpus.tgt_lengths[rows])
    fitting = np.flatnonzero((size <= LONGEST) & (size >= 3))[:COUNT]
    places = fitting if len(fitting) == COUNT else np.argsort(size, kind="stable")[:COUNT]
    return [int(place) for place in places]


def look(task: Task, outputs: Sequence[str]) -> list[Trace]:
    """Where the model looks while it writes the references; its own outputs are the notes.

    Nothing random is drawn, since the model is run without dropout.
    """
    places, corpus = chosen(task), task.dev.corpus
    rows = task.dev.rows[places]
    batch = collate(corpus, rows).to(task.fabric.device)
    targets = [corpus.tgt(row).tolist() for row in rows]
    with torch.no_grad(), task.fabric.autocast():
        found = force_decode(task.module, batch.src, batch.src_lengths, targets, kinds=KINDS)
    traces = []
    for place, row, hypothesis in zip(places, rows, found, strict=True):
        source = _source(task, int(row), task.dev.sources[place])
        ids = [*hypothesis.tokens, EOS]
        target = _text(task.tgt_tokenizer, ids, task.dev.references[place][0])
        note = outputs[place] if outputs else _perplexity(hypothesis)
        traces.append(_trace(source, target, hypothesis, note))
    return traces


def _source(task: Task, row: int, text: str) -> Text:
    side, corpus = task.src_tokenizer, task.dev.corpus
    if isinstance(side, FrameScaler):
        return Text(text, tuple(map(Token, side.labels(int(corpus.src_lengths[row])))))
    return _text(side, corpus.src(row).tolist(), text)


def _text(tokenizer: Tokenizer, ids: list[int], text: str) -> Text:
    labels = tokenizer.tokens(ids)
    tokens = [Token(label, word=i, special=ids[i] == EOS) for i, label in enumerate(labels)]
    return Text(text, tuple(tokens))


def _perplexity(hypothesis: Hypothesis) -> str:
    """What to say below the map of a text, where there is no output to show."""
    terms = hypothesis.token_log_probs
    return f"perplexity {math.exp(min(-sum(terms) / len(terms), LARGEST)):.1f}"


def _trace(source: Text, target: Text, hypothesis: Hypothesis, output: str) -> Trace:
    try:
        return Trace(source, target, _maps(hypothesis), notes=(output,))
    except TraceError:  # a run that diverges has no weights to draw, and still has a report
        return Trace(source, target, notes=(output,))


def _maps(hypothesis: Hypothesis) -> tuple[Map, ...]:
    """The first kind there is, the mean over its layers and heads."""
    kind = next((kind for kind in SIDES if hypothesis.attention.get(kind)), None)
    if kind is None:
        return ()
    layers = [weights.float().mean(dim=0) for weights in hypothesis.attention[kind]]
    mean = torch.stack(layers).mean(dim=0, keepdim=True).numpy()
    return (Map.of(kind, 0, mean, missing=True),)  # type: ignore[arg-type]
