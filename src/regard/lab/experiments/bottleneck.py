"""Quality by source length, through one fixed vector and with attention.

Question: Does one fixed vector lose long sentences, and does attention recover them?

Method: Four encoder-decoders of one layer of GRUs each have widths that give them equal parameter
counts, within 5%, and learn from the same examples in the same order: through one fixed vector;
with additive and with scaled dot-product attention over a bidirectional encoder; and of
self-attentive RNNs with additive attention between them, whose encoder reads in one direction.
Sources are joined from several pairs, as often from few as from many, in training as in the test,
so that no length is new. Answers are decoded greedily. A straight line is fitted to quality over
length, for each seed. A full run translates one to three English captions into German (Multi30k) if
the data folder has them. That cannot be learned in the time of a quick run, and the slope of models
that have not learned short sources says nothing: without them, one to sixteen words of a made-up
language are translated, word for word, with nothing to guess from but the source.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Generator

from regard.data import Tokenizer
from regard.evaluation import by_length, score
from regard.lab import datasets
from regard.lab.context import ExperimentContext
from regard.lab.estimates import (
    at,
    column,
    difference,
    first,
    grouped_table,
    interval,
    intervals,
    mean,
    spread,
)
from regard.lab.experiment import Claim, Data, Plot, ReportTable, verdict
from regard.lab.plots import curves
from regard.lab.small_models import TaskBatch, count_parameters, match_width, seeded, train
from regard.lab.translation import IdPairs, batch_of, build, translate
from regard.symbols import EOS

FIXED, ADDITIVE, DOT, SELF = "seq2seq", "bahdanau", "rnn-dot", "self-attentive"
LABELS: Final = {
    FIXED: "one fixed vector",
    ADDITIVE: "additive attention",
    DOT: "scaled dot-product attention",
    SELF: "self-attentive RNNs, additive attention",
}
#: presets with what the documents call attention between encoder and decoder
WITH_ATTENTION: Final = (ADDITIVE, DOT)
#: number of different words of the made-up language
WORDS: Final = 16
#: number of length buckets, each with an equal share of the test examples
BUCKETS: Final = 5
#: slopes are reported per this many tokens
PER: Final = 10
#: with attention, the loss on long sources may be at most this share of the loss without: half
#: of it gone is the least that can be called a repair
REPAIRED: Final = 0.5
#: seed of the test examples, different from those of training
TEST_SEED: Final = 77_777

MADE_UP: Final = {
    "embed": 32, "hidden": 64, "dropout": 0.0, "parts": 16, "tests": 320,
    "batch": 96, "steps": 220, "rate": 8e-3,
}  # fmt: skip
#: a dozen epochs: after a few, all models write generic captions, and none can lose quality
TRANSLATION: Final = {
    "embed": 128, "hidden": 320, "dropout": 0.2, "parts": 3, "tests": 1500,
    "batch": 128, "steps": 1500, "rate": 2e-3,
}  # fmt: skip
#: unit of length, measure of quality, and what sources are joined from, of either
TERMS: Final = {
    True: ("words", "words right (%)", "words"),
    False: ("source tokens", "BLEU", "captions"),
}


class EncodedCorpus(NamedTuple):
    """Pairs as token ids with their tokenizers and metric."""

    name: str
    train: IdPairs
    test: IdPairs
    tokenizers: tuple[Tokenizer, Tokenizer]
    metric: str

    @property
    def vocab(self) -> tuple[int, int]:
        """Number of tokens of either side."""
        src, tgt = self.tokenizers
        return src.vocab_size, tgt.vocab_size


@cache
def load(data: str | None) -> EncodedCorpus:
    """Return the captions of a folder, or the made-up language if `data` is None."""
    if data is not None:
        name, kind, metric = "Multi30k, English to German", "bpe", "bleu"
        train, test = datasets.translations(data)
    else:
        name, kind, metric = f"{WORDS} made-up words, word for word", "space", "per"
        train = test = [(f"s{i}", f"t{i}") for i in range(WORDS)]
    src, tgt = (Tokenizer.train(kind, side, vocab_size=4000) for side in zip(*train, strict=True))

    def encode(rows: Sequence[tuple[str, str]]) -> IdPairs:
        sources, targets = zip(*rows, strict=True)
        return list(zip(src.encode_batch(sources), tgt.encode_batch(targets), strict=True))

    return EncodedCorpus(name, encode(train), encode(test), (src, tgt), metric)


def joined(pairs: IdPairs, parts: int, count: int, generator: Generator) -> IdPairs:
    """Draw examples, each the concatenation of `parts` random pairs."""
    drawn = torch.randint(len(pairs), (count, parts), generator=generator).tolist()
    return [
        ([*(t for i in rows for t in pairs[i][0]), EOS], [t for i in rows for t in pairs[i][1]])
        for rows in drawn
    ]


def draw_batch(pairs: IdPairs, most: int, count: int, generator: Generator) -> TaskBatch:
    """Draw a batch whose examples are all joined from the same number of pairs, 1 to `most`."""
    parts = int(torch.randint(1, most + 1, (1,), generator=generator))
    return batch_of(joined(pairs, parts, count, generator))


def learn(
    *,
    name: str,
    seed: int,
    data: str | None,
    embed: int,
    hidden: int,
    dropout: float,
    parts: int,
    batch: int,
    tests: int,
    device: torch.device,
    **budget: Any,
) -> dict[str, Any]:
    """Train one model, as large as the additive one at `hidden`, and score it by length."""
    corpus = load(data)
    make = partial(build, vocab=corpus.vocab, embed=embed, dropout=dropout)
    wanted = count_parameters(partial(make, ADDITIVE, width=hidden // 2))
    half, parameters = match_width(lambda width: make(name, width=width), wanted, name=name)
    model = seeded(seed, make, name, width=half)
    draw = partial(draw_batch, corpus.train, parts)
    train(model, draw, batch=batch, seed=seed, device=device, **budget)
    generator = Generator().manual_seed(TEST_SEED)
    examples = [
        example
        for count in range(1, parts + 1)
        for example in joined(corpus.test, count, tests // parts, generator)
    ]
    found = scores_by_length(corpus, examples, translate(model, examples, batch, device))
    return {"set": corpus.name, "parameters": parameters, "width": 2 * half, **found}


def scores_by_length(
    corpus: EncodedCorpus, examples: IdPairs, found: Sequence[list[int]]
) -> dict[str, Any]:
    """Return points by length of the source, and over all examples."""
    _, tgt = corpus.tokenizers
    answers = [tgt.decode(tokens) for tokens in found]
    right = [tgt.decode(target) for _, target in examples]
    lengths = [len(source) - 1 for source, _ in examples]
    rows = by_length([corpus.metric], lengths, answers, right, buckets=BUCKETS)

    def points(value: float) -> float:
        # BLEU as it is; of an error rate, the percentage that is right
        return value if corpus.metric == "bleu" else 100 * (1 - value)

    return {
        "shortest": [row.shortest for row in rows],
        "longest": [row.longest for row in rows],
        "points": [points(row.values[corpus.metric]) for row in rows],
        "all": points(score(corpus.metric, answers, right).value),
    }


def measure(context: ExperimentContext) -> Data:
    """Train every model with every seed, on the same examples in the same order."""
    data = None if context.quick else context.folder_with(datasets.MULTI30K)
    settings: dict[str, Any] = MADE_UP if data is None else TRANSLATION
    axes = {"name": LABELS, "seed": context.seeds}
    runs = context.grid("{name}, seed {seed}", learn, axes, data=data, **settings)
    unit, quality, parts = TERMS[data is None]
    return {
        "set": runs[0]["set"], "unit": unit, "quality": quality, "joined": parts,
        **{name: settings[name] for name in ("parts", "steps", "batch")},
        "seeds": list(context.seeds), "runs": runs,
    }  # fmt: skip


def points(data: Data, preset: str) -> list[list[float]]:
    """Return the points in each length bucket, by seed."""
    return column(data["runs"], "points", name=preset)


def slopes(data: Data, preset: str) -> list[float]:
    """Return the points gained (lost if negative) per `PER` tokens of length, by seed."""
    x = np.mean(ends(data), axis=1)
    return [PER * float(np.polyfit(x, run, 1)[0]) for run in points(data, preset)]


def ends(data: Data) -> list[tuple[int, int]]:
    """Return the ends of each length bucket; all models have the same test examples."""
    run = data["runs"][0]
    return list(zip(run["shortest"], run["longest"], strict=True))


def judge(data: Data) -> list[Claim]:
    """Judge whether there is a bottleneck, and whether attention repairs it."""
    own, others = interval(slopes(data, FIXED)), [p for p in LABELS if p != FIXED]
    steeper = {p: difference(slopes(data, FIXED), slopes(data, p)) for p in others}
    longest = {p: [run[-1] for run in points(data, p)] for p in LABELS}
    lost = {p: interval([run[0] - run[-1] for run in points(data, p)]).mean for p in LABELS}
    gain = {p: difference(longest[p], longest[FIXED]) for p in others}
    near, *_, far = (found.mean for found in intervals(points(data, FIXED)))
    flatter = "; ".join(
        f"{LABELS[p]} {spread(interval(slopes(data, p)))}, a difference of {spread(steeper[p])}"
        for p in WITH_ATTENTION
    )
    better = "; ".join(
        f"{LABELS[p]} is {spread(gain[p])} points better on the longest sources, and loses "
        f"{lost[p]:.1f} points from the shortest to them"
        for p in others
    )
    return [
        Claim(
            "document 2, 1.1 point 3; document 4, on encoder-decoder RNNs",
            "Compressing a whole source into one fixed vector loses information, and more of it "
            "the longer the source is.",
            verdict(own.high < 0, all(steeper[p].high < 0 for p in WITH_ATTENTION)),
            f"On {data['set']}, {data['quality']} through one vector goes from {near:.1f} for the "
            f"shortest sources to {far:.1f} for the longest: {spread(own)} points per "
            f"{PER} {data['unit']}. With attention the slope is: {flatter}. A slope that is no "
            "steeper than with attention would be no bottleneck, since long sources are harder "
            "for every model.",
        ),
        Claim(
            "document 2, 1.1; document 4, on Bahdanau's attention",
            "Attention repairs this: the decoder reaches every part of a long source.",
            verdict(
                all(gain[p].low > 0 for p in WITH_ATTENTION),
                all(lost[p] <= REPAIRED * lost[FIXED] for p in WITH_ATTENTION),
            ),
            f"Where one vector loses {lost[FIXED]:.1f} points, {better}. At most {REPAIRED:.0%} of "
            "the loss would be a repair. The encoder of the last reads in one direction only.",
        ),
    ]


def draw(data: Data) -> list[Plot]:
    """Draw quality over length, one line per model."""
    lines = {
        label.replace(", ", ",\n"): intervals(points(data, preset))
        for preset, label in LABELS.items()
    }
    caption = (
        f"{data['quality']} of test sources by length, joined from 1 to "
        f"{data['parts']} {data['joined']}: means of {len(data['seeds'])} seeds, 95% "
        f"bands. Each point holds a fifth of the sources."
    )
    x, panels = (
        np.mean(ends(data), axis=1).tolist(),
        {f"Quality against length: {data['set']}": lines},
    )
    label = f"length of the source ({data['unit']})"
    bounds = (0.0, 100.0)  # Student's intervals may leave the range
    return [
        curves("length", caption, x, panels, bounds=bounds, xlabel=label, ylabel=data["quality"])
    ]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate parameters, quality and slope of each model, and its quality by length."""
    columns = {
        "model": lambda group: LABELS[group[0]["name"]],
        "preset": first("name"),
        "parameters": first("parameters", ","),
        "width": first("width"),
        "quality": lambda group: spread(mean(group, "all")),
        f"per {PER} {data['unit']}": lambda group: spread(interval(slopes(data, group[0]["name"]))),
    }
    columns |= {f"{a}-{b}": at("points", place, spread) for place, (a, b) in enumerate(ends(data))}
    caption = (
        f"{data['set']}: {data['steps']} steps of {data['batch']} examples, "
        f"{len(data['seeds'])} seeds; quality is {data['quality']}, over all and by length "
        f"({data['unit']}), with 95% intervals."
    )
    return [grouped_table(caption, data["runs"], ("name",), columns)]
