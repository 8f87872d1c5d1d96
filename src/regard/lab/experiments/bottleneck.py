"""Quality by source length, through one fixed vector and with attention.

Question: Does one fixed vector lose long sentences, and does attention recover them?

Method: Four encoder-decoders of one layer of GRUs each have widths that give them equal parameter
counts, within 5%, and learn from the same examples in the same order: through one fixed vector;
with additive and with scaled dot-product attention over a bidirectional encoder; and of
self-attentive RNNs with additive attention between them, whose encoder reads in one direction.
Sources are joined from several pairs, as often from few as from many, in training as in the test,
so that no length is new. Answers are decoded greedily. A straight line is fitted to quality over
length, for each seed. A full run translates one to three English captions into German (Multi30k) if
the data folder has them; if not, it pronounces one to three words of the bundled CMUdict letter by
letter, and only the first pronunciation counts as right. Neither can be learned in the time of a
quick run, and the slope of models that have not learned short sources says nothing: a quick run
translates one to sixteen words of a made-up language, word for word, with nothing to guess from but
the source.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Generator

from regard.data import Tokenizer, pad
from regard.decoding import DecodingOptions, decode
from regard.evaluation import by_length, score
from regard.lab import datasets
from regard.lab.context import ExperimentContext, difference, interval, intervals, spread
from regard.lab.experiment import Claim, Data, Plot, ReportTable, column, verdict
from regard.lab.plots import draw_lines, legend, new_figure
from regard.lab.small_models import (
    IGNORED,
    LogitsOnly,
    TaskBatch,
    count_parameters,
    match_width,
    seeded,
    train,
)
from regard.models import SequenceModel
from regard.models.presets import PRESETS
from regard.symbols import BOS, EOS, PAD

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
Encoded = Sequence[tuple[list[int], list[int]]]

MADE_UP: Final = {
    "task": "made up", "embed": 32, "hidden": 64, "dropout": 0.0, "parts": 16, "batch": 96,
    "steps": 220, "rate": 8e-3, "tests": 320,
}  # fmt: skip
#: an H200 waits for its host at every word: large batches are cheap, steps are not
PRONUNCIATION: Final = {
    "task": "pronunciation", "embed": 64, "hidden": 192, "dropout": 0.1, "parts": 3, "batch": 512,
    "steps": 280, "rate": 3e-3, "tests": 1500,
}  # fmt: skip
#: a dozen epochs: after a few, all models write generic captions, and none can lose quality
TRANSLATION: Final = PRONUNCIATION | {
    "task": "translation", "embed": 128, "hidden": 320, "dropout": 0.2, "batch": 128,
    "steps": 1500, "rate": 2e-3,
}  # fmt: skip
#: unit of length, measure of quality, and what sources are joined from
TERMS: Final = {
    "made up": ("words", "words right (%)", "words"),
    "pronunciation": ("letters", "phonemes right (%)", "words"),
    "translation": ("source tokens", "BLEU", "captions"),
}


class EncodedCorpus(NamedTuple):
    """Pairs as token ids with their tokenizers and metric."""

    name: str
    train: Encoded
    test: Encoded
    src: Tokenizer
    tgt: Tokenizer
    metric: str


@cache
def load(name: str, data: str | None) -> EncodedCorpus:
    """Return a corpus by name; translation needs the folder that has it."""
    if name == "translation":
        pairs = datasets.translations(str(data))
    else:
        made_up = name == "made up"
        pairs = datasets.made_up_words(WORDS) if made_up else datasets.pronunciations()
    sides = list(zip(*pairs.train, strict=True))
    src, tgt = (
        Tokenizer.train(kind, side, vocab_size=4000)
        for kind, side in zip(pairs.kinds, sides, strict=True)
    )

    def encode(rows: Sequence[tuple[str, str]]) -> Encoded:
        sources, targets = zip(*rows, strict=True)
        return list(zip(src.encode_batch(sources), tgt.encode_batch(targets), strict=True))

    return EncodedCorpus(
        pairs.name, encode(pairs.train), encode(pairs.test), src, tgt, pairs.metric
    )


def joined(pairs: Encoded, parts: int, count: int, generator: Generator) -> Encoded:
    """Draw examples, each the concatenation of `parts` random pairs."""
    drawn = torch.randint(len(pairs), (count, parts), generator=generator).tolist()
    return [
        ([t for i in rows for t in pairs[i][0]], [t for i in rows for t in pairs[i][1]])
        for rows in drawn
    ]


def draw_batch(pairs: Encoded, most: int, count: int, generator: Generator) -> TaskBatch:
    """Draw a batch whose examples are all joined from the same number of pairs, 1 to `most`."""
    parts = int(torch.randint(1, most + 1, (1,), generator=generator))
    rows = joined(pairs, parts, count, generator)
    src, lengths = pad([[*source, EOS] for source, _ in rows])
    inputs, _ = pad([[BOS, *target] for _, target in rows])
    targets, _ = pad([[*target, EOS] for _, target in rows])
    return TaskBatch((src, lengths, inputs), targets.masked_fill(targets == PAD, IGNORED))


def build(
    preset: str, corpus: EncodedCorpus, embed: int, dropout: float, half: int
) -> SequenceModel:
    """Build a preset with one layer of GRUs; `half` is half of its width."""
    sizes = {"embed": embed, "hidden": 2 * half, "layers": 1, "cell": "gru", "dropout": dropout}
    return PRESETS[preset](corpus.src.vocab_size, corpus.tgt.vocab_size, **sizes)


def learn(
    *,
    name: str,
    seed: int,
    task: str,
    data: str | None,
    embed: int,
    hidden: int,
    dropout: float,
    parts: int,
    batch: int,
    steps: int,
    rate: float,
    tests: int,
    device: torch.device,
) -> dict[str, Any]:
    """Train one model, as large as the additive one at `hidden`, and score it by length."""
    corpus = load(task, data)
    make = partial(build, name, corpus, embed, dropout)
    wanted = count_parameters(build, ADDITIVE, corpus, embed, dropout, hidden // 2)
    half, parameters = match_width(make, wanted, name=name)
    model = seeded(seed, make, half)
    draw = partial(draw_batch, corpus.train, parts, batch)
    losses = train(LogitsOnly(model), draw, steps=steps, lr=rate, seed=seed, device=device)
    generator = Generator().manual_seed(TEST_SEED)
    examples = [
        example
        for count in range(1, parts + 1)
        for example in joined(corpus.test, count, tests // parts, generator)
    ]
    return {
        "set": corpus.name,
        "parameters": parameters,
        "width": 2 * half,
        "loss": float(np.mean(losses[-10:])),
        **scores_by_length(corpus, examples, predict(model, examples, batch, device)),
    }


@torch.no_grad()
def predict(
    model: SequenceModel, examples: Encoded, batch: int, device: torch.device
) -> list[list[int]]:
    """Decode every example greedily."""
    options = DecodingOptions(beam=1, max_len_ratio=1.5, max_len_extra=10)
    found: list[list[int]] = []
    for start in range(0, len(examples), batch):
        src, lengths = pad([[*source, EOS] for source, _ in examples[start : start + batch]])
        best = decode(model.eval(), src.to(device), lengths.to(device), options)
        found += [hypotheses[0].tokens for hypotheses in best]
    return found


def scores_by_length(
    corpus: EncodedCorpus, examples: Encoded, found: Sequence[list[int]]
) -> dict[str, Any]:
    """Return points by length of the source, and over all examples."""
    answers = [corpus.tgt.decode(tokens) for tokens in found]
    right = [corpus.tgt.decode(target) for _, target in examples]
    lengths = [len(source) for source, _ in examples]
    rows = by_length([corpus.metric], lengths, answers, right, buckets=BUCKETS)

    def points(value: float) -> float:
        # BLEU as it is; of an error rate, the percentage that is right
        return value if corpus.metric == "bleu" else 100 * (1 - value)

    return {
        "shortest": [row.shortest for row in rows],
        "longest": [row.longest for row in rows],
        "count": [row.count for row in rows],
        "points": [points(row.values[corpus.metric]) for row in rows],
        "all": points(score(corpus.metric, answers, right).value),
    }


def measure(context: ExperimentContext) -> Data:
    """Train every model with every seed, on the same examples in the same order."""
    data = None if context.quick else datasets.folder_with(context.data, datasets.MULTI30K)
    longer = PRONUNCIATION if data is None else TRANSLATION
    settings: dict[str, Any] = context.choose(MADE_UP, longer)
    axes = {"name": LABELS, "seed": context.seeds}
    runs = context.grid("{name}, seed {seed}", learn, axes, data=data, **settings)
    unit, quality, parts = TERMS[settings["task"]]
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
    x = [(a + b) / 2 for a, b in _ends(data)]
    return [PER * float(np.polyfit(x, run, 1)[0]) for run in points(data, preset)]


def _ends(data: Data) -> list[tuple[int, int]]:
    """Return the ends of each length bucket; all models have the same test examples."""
    run = data["runs"][0]
    return list(zip(run["shortest"], run["longest"], strict=True))


def judge(data: Data) -> list[Claim]:
    """Judge whether there is a bottleneck, and whether attention repairs it."""
    return [_bottleneck(data), _repair(data)]


def _bottleneck(data: Data) -> Claim:
    """Long sources must be worse through one vector, and more so than with attention."""
    own = slopes(data, FIXED)
    steeper = {preset: difference(own, slopes(data, preset)) for preset in WITH_ATTENTION}
    others = "; ".join(
        f"{LABELS[p]} {spread(interval(slopes(data, p)))}, a difference of {spread(found)}"
        for p, found in steeper.items()
    )
    first, *_, last = (found.mean for found in intervals(points(data, FIXED)))
    return Claim(
        source="document 2, 1.1 point 3; document 4, on encoder-decoder RNNs",
        text="Compressing a whole source into one fixed vector loses information, and more of it "
        "the longer the source is.",
        verdict=verdict(interval(own).high < 0, all(found.high < 0 for found in steeper.values())),
        evidence=(
            f"On {data['set']}, {data['quality']} through one vector goes from {first:.1f} for the "
            f"shortest sources to {last:.1f} for the longest: {spread(interval(own))} points per "
            f"{PER} {data['unit']}. With attention the slope is: {others}. A slope that is no "
            f"steeper than with attention would be no bottleneck, since long sources are harder "
            f"for every model."
        ),
    )


def _repair(data: Data) -> Claim:
    """With attention, the longest sources must be better, and lose at most half as much."""

    def lost(preset: str) -> float:
        return interval([run[0] - run[-1] for run in points(data, preset)]).mean

    longest = {preset: [run[-1] for run in points(data, preset)] for preset in LABELS}
    gain = {preset: difference(longest[preset], longest[FIXED]) for preset in LABELS}
    without = lost(FIXED)
    listed = "; ".join(
        f"{LABELS[p]} is {spread(gain[p])} points better on the longest sources, and loses "
        f"{lost(p):.1f} points from the shortest to them"
        for p in WITH_ATTENTION
    )
    return Claim(
        source="document 2, 1.1; document 4, on Bahdanau's attention",
        text="Attention repairs this: the decoder reaches every part of a long source.",
        verdict=verdict(
            all(gain[p].low > 0 for p in WITH_ATTENTION),
            all(lost(p) <= REPAIRED * without for p in WITH_ATTENTION),
        ),
        evidence=(
            f"Where one vector loses {without:.1f} points, {listed}. At most {REPAIRED:.0%} of the "
            f"loss would be a repair. With {LABELS[SELF]}, whose encoder reads in one "
            f"direction only, it is {spread(gain[SELF])} points and {lost(SELF):.1f}."
        ),
    )


def draw(data: Data) -> list[Plot]:
    """Draw quality over length, one line per model."""
    figure, (axes,) = new_figure()
    x = [(a + b) / 2 for a, b in _ends(data)]
    lines = {
        label.replace(", ", ",\n"): intervals(points(data, preset))
        for preset, label in LABELS.items()
    }
    draw_lines(axes, x, lines)
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(0, bottom), min(102, top))  # Student's intervals may leave the range
    axes.set_xlabel(f"length of the source ({data['unit']})")
    axes.set_ylabel(data["quality"])
    axes.set_title(f"Quality against length: {data['set']}")
    legend(axes)
    caption = (
        f"{data['quality']} of test sources by length, joined from 1 to "
        f"{data['parts']} {data['joined']}: means of {len(data['seeds'])} seeds, 95% "
        f"bands. Each point holds a fifth of the sources."
    )
    return [Plot("length", caption, figure)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate parameters, quality and slope of each model, and its quality by length."""
    lengths = [f"{a}-{b}" for a, b in _ends(data)]
    summary, by_row = [], []
    for preset, label in LABELS.items():
        parameters, width = (
            column(data["runs"], what, name=preset)[0] for what in ("parameters", "width")
        )
        quality = spread(interval(column(data["runs"], "all", name=preset)))
        slope = spread(interval(slopes(data, preset)))
        summary.append([label, preset, f"{parameters:,}", f"{width}", quality, slope])
        by_row.append([label, *map(spread, intervals(points(data, preset)))])
    caption = (
        f"{data['set']}: {data['steps']} steps of {data['batch']} examples, "
        f"{len(data['seeds'])} seeds; quality is {data['quality']}, with 95% intervals."
    )
    columns = ["model", "preset", "parameters", "width", "quality", f"per {PER} {data['unit']}"]
    return [
        ReportTable(caption, columns, summary),
        ReportTable(f"The same by length ({data['unit']}).", ["model", *lengths], by_row),
    ]
