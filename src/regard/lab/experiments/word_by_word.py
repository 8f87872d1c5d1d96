"""One output per input against reading all of the source first, in place and out of place."""

from functools import partial
from itertools import product
from typing import Final, final

import torch
from torch import Generator, Tensor, nn

from regard.decoding import DecodingOptions, greedy
from regard.lab import learning
from regard.lab.bench import Bench
from regard.lab.experiment import Claim, Data, Experiment, Plot, Table, Verdict
from regard.lab.plots import COLOURS, legend, new_figure
from regard.lab.statistics import Interval, interval
from regard.lab.tasks import Batch, Rewriting
from regard.models import PRESETS, SequenceModel
from regard.seeing.palette import TEXT

#: the aligned RNN, the encoder-decoder through one vector, and the one with attention
MODELS: Final = ("rnn", "seq2seq", "bahdanau")
ALIGNED: Final = MODELS[0]
TITLES: Final = {
    "rnn": "word by word (rnn)",
    "seq2seq": "encoder-decoder (seq2seq)",
    "bahdanau": "with attention (bahdanau)",
}
MONOTONE: Final = ("word for word", "running sum")
REORDERING: Final = ("neighbours swapped", "last word second")
WORDS: Final = 8
#: sentences of training have so many words, and those of the test too
SHORTEST: Final = 3
LONGEST: Final = 6
#: a model can do a task if so many sentences are right as a whole
DOES: Final = 0.9
#: and cannot if fewer than half are
FAILS: Final = 0.5
#: sentences that a number in the report is made of, per seed
EXAMPLES: Final = 256
#: a share of right sentences that is smaller by no more than this is as good
AS_GOOD: Final = 0.02


@final
class Forced(nn.Module):
    """A preset that is told the target so far, and gives the scores of the next words."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, src: Tensor, lengths: Tensor, tgt: Tensor) -> Tensor:
        """The scores alone."""
        logits: Tensor = self.model(src, lengths, tgt).logits
        return logits


def model(preset: str, width: int) -> Forced:
    """A preset with GRU cells and one layer; both directions of an encoder share `2 * width`."""
    vocab = Rewriting(MONOTONE[0], WORDS).vocab
    sizes = {"embed": width, "hidden": 2 * width, "layers": 1}
    return Forced(PRESETS[preset](vocab, vocab, cell="gru", dropout=0.0, **sizes))


def run(
    *,
    preset: str,
    order: str,
    width: int,
    seed: int,
    rate: float,
    steps: int,
    batch: int,
    device: torch.device,
) -> dict[str, float]:
    """The shares of words and of whole sentences that are right after one training."""
    task = Rewriting(order, WORDS)
    learner = learning.seeded(seed, model, preset, width)

    def draw(chance: Generator) -> Batch:
        length = int(torch.randint(SHORTEST, LONGEST + 1, (1,), generator=chance))
        return task.draw(batch, length, chance)

    learning.train(learner, draw, steps=steps, lr=rate, seed=seed, device=device)
    return translated(learner.model, task, seed, device)


def translated(
    learner: SequenceModel, task: Rewriting, seed: int, device: torch.device
) -> dict[str, float]:
    """How much of greedy translations is right, over all lengths; nothing is told to the model."""
    chance = Generator().manual_seed(learning.HELD_OUT + seed)
    words = sentences = asked = 0
    lengths = range(SHORTEST, LONGEST + 1)
    for length in lengths:
        src, gold = task.pairs(EXAMPLES // len(lengths), length, chance)
        counts = torch.full((len(src),), length)
        found = greedy(
            learner, src.to(device), counts.to(device), DecodingOptions(beam=1, max_len=length + 2)
        )
        for hypotheses, wanted in zip(found, gold.tolist(), strict=True):
            written = hypotheses[0].tokens
            sentences += written == wanted
            words += sum(a == b for a, b in zip(written, wanted, strict=False))
            asked += length
    return {
        "words": words / asked,
        "sentences": sentences / (EXAMPLES // len(lengths) * len(lengths)),
    }


def measure(bench: Bench) -> Data:
    """Every preset on every order of words."""
    setting = bench.choose(
        {"steps": 300, "batch": 64, "rate": 0.01}, {"steps": 2000, "batch": 256, "rate": 0.005}
    )
    target = learning.count_parameters(partial(model, "bahdanau"), bench.choose(16, 64))
    sizes = {
        preset: learning.match_width(partial(model, preset), target, name=preset)
        for preset in MODELS
    }
    cases: list[Data] = [
        {"preset": preset, "order": order, "seed": seed}
        for order, preset, seed in product(MONOTONE + REORDERING, MODELS, bench.seeds)
    ]
    pieces = [
        (
            f"{case['order']}: {case['preset']}",
            case | {"width": sizes[case["preset"]].width} | setting,
        )
        for case in cases
    ]
    runs = [case | found for case, found in zip(cases, bench.each(run, pieces), strict=True)]
    return {
        "setting": setting,
        "sizes": {preset: size._asdict() for preset, size in sizes.items()},
        "runs": runs,
    }


def judge(data: Data) -> list[Claim]:
    """Whether words one by one will do, for orders that change and for those that do not."""
    return [_wrong_output(data), _series(data)]


def _wrong_output(data: Data) -> Claim:
    fails = [order for order in REORDERING if _right(data, ALIGNED, order).mean < FAILS]
    solved = [order for order in REORDERING if max(_others(data, order).values()) >= DOES]
    verdict: Verdict = "does not hold"
    if fails:
        complete = len(fails) == len(REORDERING) == len(solved)
        verdict = "holds" if complete else "holds with limits"
    told = "; ".join(
        f"{order}: {_right(data, ALIGNED, order).mean:.0%} of sentences are right word by word "
        f"(and {_right(data, ALIGNED, order, 'words').mean:.0%} of words), "
        + ", ".join(f"{share:.0%} with {name}" for name, share in _others(data, order).items())
        for order in REORDERING
    )
    return Claim(
        "document 4, figure 16-2",
        "A sentence cannot be translated word by word: an encoder-decoder that reads it first can.",
        verdict,
        f"{told[0].upper()}{told[1:]}. The aligned RNN cannot write a word before it is read, "
        "however long it trains.",
    )


def _series(data: Data) -> Claim:
    behind = [
        order
        for order in MONOTONE
        if _right(data, ALIGNED, order).mean < max(_others(data, order).values()) - AS_GOOD
    ]
    does = [order for order in MONOTONE if _right(data, ALIGNED, order).mean >= DOES]
    good = [order for order in does if order not in behind]
    told = "; ".join(
        f"{order}: {_right(data, ALIGNED, order).mean:.0%} of sequences are right one step at a "
        "time, "
        + ", ".join(f"{share:.0%} with {name}" for name, share in _others(data, order).items())
        for order in MONOTONE
    )
    verdict: Verdict = "holds with limits" if good else "does not hold"
    return Claim(
        "document 4, figure 16-2",
        "One output per input (a) suits time series best, where each step gets its own prediction.",
        "holds" if len(good) == len(MONOTONE) else verdict,
        f"{told[0].upper()}{told[1:]}. All have the same number of parameters and of steps.",
    )


def _right(data: Data, preset: str, order: str, unit: str = "sentences") -> Interval:
    return interval(
        [run[unit] for run in data["runs"] if (run["preset"], run["order"]) == (preset, order)]
    )


def _others(data: Data, order: str) -> dict[str, float]:
    """What the encoder-decoders reach."""
    return {name: _right(data, name, order).mean for name in MODELS if name != ALIGNED}


def draw(data: Data) -> list[Plot]:
    """Whole sentences that are right, for each order and model."""
    figure, (axes,) = new_figure()
    orders, width = MONOTONE + REORDERING, 0.8 / len(MODELS)
    for place, preset in enumerate(MODELS):
        shares = [_right(data, preset, order) for order in orders]
        means = [share.mean for share in shares]
        below = [share.mean - max(0.0, share.low) for share in shares]
        above = [min(1.0, share.high) - share.mean for share in shares]
        spots = [spot + (place - 1) * width for spot in range(len(orders))]
        axes.bar(spots, means, width, color=COLOURS[place], label=TITLES[preset], zorder=2)
        axes.errorbar(spots, means, [below, above], fmt="none", ecolor=TEXT, capsize=3, zorder=3)
    axes.set_xticks(range(len(orders)), orders)
    axes.set(ylim=(0, 1.03), ylabel="share of sentences all right", xlabel="what happens to words")
    axes.set_title("Translating word by word, and after reading the whole")
    legend(axes, below=True)
    caption = (
        "Sentences that are right as a whole, translated greedily, with 95% intervals over seeds. "
        "Two orders keep words in place (left), two move them (right)."
    )
    return [Plot("word-by-word", caption, figure)]


def tabulate(data: Data) -> list[Table]:
    """Parameters, and what is right, by word and by sentence."""
    setting = data["setting"]
    rows = [
        [
            order, preset, f"{data['sizes'][preset]['parameters']:,}",
            learning.percent(_right(data, preset, order, "words")),
            learning.percent(_right(data, preset, order)),
        ]
        for order, preset in product(MONOTONE + REORDERING, MODELS)
    ]  # fmt: skip
    caption = (
        f"{setting['steps']} steps of {setting['batch']} sentences of {SHORTEST} to {LONGEST} "
        f"words, learning rate {setting['rate']:g}."
    )
    columns = ["order of words", "preset", "parameters", "right words", "right sentences"]
    return [Table(caption, columns, rows)]


EXPERIMENT: Final = Experiment(
    name="word-by-word",
    question="When may a model write one output per input, and when must it read first?",
    method=(
        "Three presets with GRU cells and equal numbers of parameters within 5%: `rnn` writes one "
        "word per word it reads; `seq2seq` reads the sentence into one vector first; `bahdanau` "
        "looks at it while it writes. Four made-up languages: each word has its translation in "
        "its place, or depends on the word before (a running sum); neighbours change places, or "
        "the last word comes second, as a German verb does in English. The same steps, examples "
        "and learning rate; greedy translation of new sentences; several seeds."
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    tabulate=tabulate,
)
