"""One output per input, compared with reading the whole source first.

Question: When may a model write one output per input, and when must it read first?

Method: Three presets with GRU cells and equal parameter counts within 5%: `rnn` writes one word per
word it reads; `seq2seq` reads the sentence into one vector first; `bahdanau` attends to it while it
writes. Four made-up languages: each word has its translation in its place, or depends on the word
before (a running sum); neighbours swap, or the last word comes second, as a German verb does in
English. The same steps, examples and learning rate; greedy translation of new sentences; several
seeds.
"""

from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Generator

from regard.decoding import DecodingOptions, decode
from regard.lab.context import ExperimentContext, MeanInterval, interval, percent
from regard.lab.experiment import Claim, Data, Plot, ReportTable, column, verdict
from regard.lab.plots import COLOURS, legend, new_figure
from regard.lab.small_models import (
    HELD_OUT,
    LogitsOnly,
    Rewriting,
    TaskBatch,
    count_parameters,
    match_width,
    seeded,
    train,
)
from regard.models import PRESETS, SequenceModel
from regard.seeing.draw.shapes import TEXT

ALIGNED: Final = "rnn"
#: presets and their names in the figure
MODELS: Final = {
    ALIGNED: "word by word (rnn)",
    "seq2seq": "encoder-decoder (seq2seq)",
    "bahdanau": "with attention (bahdanau)",
}
MONOTONE: Final = ("word for word", "running sum")
REORDERING: Final = ("neighbours swapped", "last word second")
ORDERS: Final = MONOTONE + REORDERING
WORDS: Final = 8
#: lengths of the sentences in training and test
LENGTHS: Final = range(3, 7)
#: share of correct sentences from which a model solves a task, and below which it fails
SOLVES: Final = 0.9
FAILS: Final = 0.5
#: test sentences per seed
EXAMPLES: Final = 256
#: a share of correct sentences that is smaller by no more than this is as good
AS_GOOD: Final = 0.02


def build(preset: str, width: int) -> SequenceModel:
    """Build a preset with one layer of GRUs; both directions of an encoder share `2 * width`."""
    vocab = Rewriting(MONOTONE[0], WORDS).vocab
    sizes = {"embed": width, "hidden": 2 * width, "layers": 1}
    return PRESETS[preset](vocab, vocab, cell="gru", dropout=0.0, **sizes)


def learn(
    *,
    preset: str,
    order: str,
    widths: dict[str, int],
    seed: int,
    rate: float,
    steps: int,
    batch: int,
    device: torch.device,
) -> dict[str, float]:
    """Train one model; return the shares of correct words and of correct sentences."""
    task = Rewriting(order, WORDS)
    model = seeded(seed, build, preset, widths[preset])

    def draw(generator: Generator) -> TaskBatch:
        length = int(torch.randint(LENGTHS[0], LENGTHS[-1] + 1, (1,), generator=generator))
        return task.draw(batch, length, generator)

    train(LogitsOnly(model), draw, steps=steps, lr=rate, seed=seed, device=device)
    return score(model.eval(), task, seed, device)


def score(
    model: SequenceModel, task: Rewriting, seed: int, device: torch.device
) -> dict[str, float]:
    """Return the shares of greedy translations that are correct, over all lengths."""
    generator = Generator().manual_seed(HELD_OUT + seed)
    words = sentences = asked = 0
    count = EXAMPLES // len(LENGTHS)
    for length in LENGTHS:
        src, gold = task.pairs(count, length, generator)
        lengths, options = torch.full((count,), length), DecodingOptions(beam=1, max_len=length + 2)
        found = decode(model, src.to(device), lengths.to(device), options)
        for hypotheses, wanted in zip(found, gold.tolist(), strict=True):
            written = hypotheses[0].tokens
            sentences += written == wanted
            words += sum(a == b for a, b in zip(written, wanted, strict=False))
            asked += length
    return {"words": words / asked, "sentences": sentences / (count * len(LENGTHS))}


def measure(context: ExperimentContext) -> Data:
    """Train every preset on every word order."""
    setting = context.choose(
        {"steps": 300, "batch": 64, "rate": 0.01}, {"steps": 2000, "batch": 256, "rate": 0.005}
    )
    target = count_parameters(build, "bahdanau", context.choose(16, 64))
    sizes = {preset: match_width(partial(build, preset), target, name=preset) for preset in MODELS}
    widths = {preset: size.width for preset, size in sizes.items()}
    axes = {"order": ORDERS, "preset": MODELS, "seed": context.seeds}
    runs = context.grid("{order}: {preset}", learn, axes, widths=widths, **setting)
    return {
        "setting": setting,
        "sizes": {preset: size._asdict() for preset, size in sizes.items()},
        "runs": runs,
    }


def judge(data: Data) -> list[Claim]:
    """Judge one output per input, for orders that change and for those that do not."""
    return [_wrong_output(data), _time_series(data)]


def _wrong_output(data: Data) -> Claim:
    fails = [order for order in REORDERING if _right(data, ALIGNED, order).mean < FAILS]
    solved = [order for order in REORDERING if max(_others(data, order).values()) >= SOLVES]
    listed = "; ".join(
        f"{order}: {_right(data, ALIGNED, order).mean:.0%} of sentences are right word by word "
        f"(and {_right(data, ALIGNED, order, 'words').mean:.0%} of words), {_compared(data, order)}"
        for order in REORDERING
    )
    return Claim(
        "document 4, figure 16-2",
        "A sentence cannot be translated word by word: an encoder-decoder that reads it first can.",
        verdict(fails, len(fails) == len(REORDERING) == len(solved)),
        f"{listed[0].upper()}{listed[1:]}. The aligned RNN cannot write a word before it is read, "
        "however long it trains.",
    )


def _time_series(data: Data) -> Claim:
    good = [
        order
        for order in MONOTONE
        if _right(data, ALIGNED, order).mean
        >= max(SOLVES, max(_others(data, order).values()) - AS_GOOD)
    ]
    listed = "; ".join(
        f"{order}: {_right(data, ALIGNED, order).mean:.0%} of sequences are right one step at a "
        f"time, {_compared(data, order)}"
        for order in MONOTONE
    )
    return Claim(
        "document 4, figure 16-2",
        "One output per input (a) suits time series best, where each step gets its own prediction.",
        verdict(good, len(good) == len(MONOTONE)),
        f"{listed[0].upper()}{listed[1:]}. All have the same number of parameters and of steps.",
    )


def _right(data: Data, preset: str, order: str, unit: str = "sentences") -> MeanInterval:
    return interval(column(data["runs"], unit, preset=preset, order=order))


def _others(data: Data, order: str) -> dict[str, float]:
    """Return the shares of correct sentences of the encoder-decoders."""
    return {name: _right(data, name, order).mean for name in MODELS if name != ALIGNED}


def _compared(data: Data, order: str) -> str:
    return ", ".join(f"{share:.0%} with {name}" for name, share in _others(data, order).items())


def draw(data: Data) -> list[Plot]:
    """Draw the share of correct sentences for each order and model."""
    figure, (axes,) = new_figure()
    width = 0.8 / len(MODELS)
    for place, (preset, title) in enumerate(MODELS.items()):
        shares = [_right(data, preset, order) for order in ORDERS]
        means = [share.mean for share in shares]
        below = [share.mean - max(0.0, share.low) for share in shares]
        above = [min(1.0, share.high) - share.mean for share in shares]
        spots = [spot + (place - 1) * width for spot in range(len(ORDERS))]
        axes.bar(spots, means, width, color=COLOURS[place], label=title, zorder=2)
        axes.errorbar(spots, means, [below, above], fmt="none", ecolor=TEXT, capsize=3, zorder=3)
    axes.set_xticks(range(len(ORDERS)), ORDERS)
    axes.set(ylim=(0, 1.03), ylabel="share of correct sentences", xlabel="word order")
    axes.set_title("Translating word by word, and after reading the whole")
    legend(axes, below=True)
    caption = (
        "Sentences that are right as a whole, translated greedily, with 95% intervals over seeds. "
        "Two orders keep words in place (left), two move them (right)."
    )
    return [Plot("word-by-word", caption, figure)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate parameters and the shares of correct words and sentences."""
    setting = data["setting"]
    rows = [
        [
            order, preset, f"{data['sizes'][preset]['parameters']:,}",
            *(percent(_right(data, preset, order, unit)) for unit in ("words", "sentences")),
        ]
        for order, preset in product(ORDERS, MODELS)
    ]  # fmt: skip
    caption = (
        f"{setting['steps']} steps of {setting['batch']} sentences of {LENGTHS[0]} to "
        f"{LENGTHS[-1]} words, learning rate {setting['rate']:g}."
    )
    columns = ["word order", "preset", "parameters", "correct words", "correct sentences"]
    return [ReportTable(caption, columns, rows)]
