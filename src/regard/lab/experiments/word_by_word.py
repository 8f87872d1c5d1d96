"""One output per input, compared with reading the whole source first.

Question: When may a model write one output per input, and when must it read first?

Method: Three presets with GRU cells and equal parameter counts within 5%: `rnn` writes one word per
word it reads; `seq2seq` reads the sentence into one vector first; `bahdanau` attends to it while it
writes. Four made-up languages: each word has its translation in its place, or depends on the word
before (a running sum); neighbours swap, or the last word comes second, as a German verb does in
English. The same steps, examples and learning rate; greedy translation of new sentences; several
seeds.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Generator, Tensor

from regard.lab.context import ExperimentContext
from regard.lab.estimates import first, grouped_table, mean, percent
from regard.lab.experiment import Claim, Data, ReportTable, verdict
from regard.lab.small_models import HELD_OUT, count_parameters, integers, match_width, seeded, train
from regard.lab.translation import IdPairs, batch_of, build, translate
from regard.symbols import SYMBOLS

#: presets and their names in the evidence
ALIGNED: Final = "rnn"
MODELS: Final = (ALIGNED, "seq2seq", "bahdanau")
MONOTONE: Final = ("word for word", "running sum")
REORDERING: Final = ("neighbours swapped", "last word second")
#: number of different words, and of token ids of either side
WORDS: Final = 8
VOCAB: Final = (len(SYMBOLS) + WORDS,) * 2
#: lengths of the sentences in training and test
LENGTHS: Final = range(3, 7)
#: share of correct sentences from which a model solves a task, and below which it fails
SOLVES: Final = 0.9
FAILS: Final = 0.5
#: test sentences of each length per seed
EXAMPLES: Final = 64
#: a share of correct sentences that is smaller by no more than this is as good
AS_GOOD: Final = 0.02


def word_for_word(source: Tensor) -> Tensor:
    """Translate word w to word w + 1, in its place."""
    return (source + 1) % WORDS


def running_sum(source: Tensor) -> Tensor:
    """Add the word before, as in a time series."""
    before = torch.cat([torch.zeros_like(source[:, :1]), source[:, :-1]], dim=1)
    return (source + before) % WORDS


def neighbours_swapped(source: Tensor) -> Tensor:
    """Swap neighbours, two by two; a last word without a neighbour stays."""
    order = torch.arange(source.shape[1])
    even = source.shape[1] // 2 * 2
    order[:even] = order[:even].view(-1, 2).flip(1).flatten()
    return word_for_word(source[:, order])


def last_word_second(source: Tensor) -> Tensor:
    """Move the last word to the second place, as a German verb moves in English."""
    return word_for_word(torch.cat([source[:, :1], source[:, -1:], source[:, 1:-1]], dim=1))


#: translations by the order of their words
ORDERS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "word for word": word_for_word,
    "running sum": running_sum,
    "neighbours swapped": neighbours_swapped,
    "last word second": last_word_second,
}


def draw_pairs(order: str, length: int, count: int, generator: Generator) -> IdPairs:
    """Draw sources and their translations as token ids."""
    source = integers(WORDS, (count, length), generator)
    sides = (source, ORDERS[order](source))
    return list(zip(*((side + len(SYMBOLS)).tolist() for side in sides), strict=True))


def learn(
    *,
    preset: str,
    order: str,
    widths: dict[str, int],
    seed: int,
    device: torch.device,
    **budget: Any,
) -> dict[str, float]:
    """Train one model; return the share of new sentences that it translates correctly."""
    model = seeded(seed, build, preset, VOCAB, widths[preset])

    def draw(count: int, generator: Generator) -> Any:
        length = int(torch.randint(LENGTHS[0], LENGTHS[-1] + 1, (1,), generator=generator))
        return batch_of(draw_pairs(order, length, count, generator))

    train(model, draw, seed=seed, device=device, **budget)
    generator = Generator().manual_seed(HELD_OUT + seed)
    tests = [pair for n in LENGTHS for pair in draw_pairs(order, n, EXAMPLES, generator)]
    found = translate(model, tests, EXAMPLES, device)
    right = [answer == target for answer, (_, target) in zip(found, tests, strict=True)]
    return {"sentences": sum(right) / len(right)}


def measure(context: ExperimentContext) -> Data:
    """Train every preset on every word order."""
    setting = context.budget((300, 64, 0.01), (2000, 256, 0.005))
    target = count_parameters(build, "bahdanau", VOCAB, context.choose(16, 64))
    sizes = {
        preset: match_width(partial(build, preset, VOCAB), target, name=preset) for preset in MODELS
    }
    widths = {preset: size.width for preset, size in sizes.items()}
    axes = {"order": ORDERS, "preset": MODELS, "seed": context.seeds}
    runs = context.grid("{order}: {preset}", learn, axes, widths=widths, **setting)
    told = {preset: size._asdict() for preset, size in sizes.items()}
    return {"setting": setting, "sizes": told, "runs": runs}


def judge(data: Data) -> list[Claim]:
    """Judge one output per input, for orders that change and for those that do not."""
    shares = {
        (order, preset): mean(data["runs"], "sentences", order=order, preset=preset).mean
        for order in ORDERS
        for preset in MODELS
    }
    others = {o: max(shares[o, preset] for preset in MODELS if preset != ALIGNED) for o in ORDERS}
    fails = [order for order in REORDERING if shares[order, ALIGNED] < FAILS]
    solved = [order for order in REORDERING if others[order] >= SOLVES]
    good = [o for o in MONOTONE if shares[o, ALIGNED] >= max(SOLVES, others[o] - AS_GOOD)]

    def evidence(orders: tuple[str, ...]) -> str:
        each = (
            f"{order} "
            + ", ".join(f"{shares[order, preset]:.0%} with {preset}" for preset in MODELS)
            for order in orders
        )
        return f"Sentences that are right as a whole: {'; '.join(each)}."

    return [
        Claim(
            "document 4, figure 16-2",
            "A sentence cannot be translated word by word: an encoder-decoder that reads it first "
            "can.",
            verdict(fails, len(fails) == len(REORDERING) == len(solved)),
            f"{evidence(REORDERING)} The aligned RNN cannot write a word before it is read, "
            "however long it trains.",
        ),
        Claim(
            "document 4, figure 16-2",
            "One output per input (a) suits time series best, where each step gets its own "
            "prediction.",
            verdict(good, len(good) == len(MONOTONE)),
            f"{evidence(MONOTONE)} All have the same number of parameters and of steps.",
        ),
    ]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate parameters and the shares of correct sentences."""
    setting = data["setting"]
    caption = (
        f"{setting['steps']} steps of {setting['batch']} sentences of {LENGTHS[0]} to "
        f"{LENGTHS[-1]} words, learning rate {setting['rate']:g}."
    )
    columns = {
        "word order": first("order"),
        "preset": first("preset"),
        "parameters": lambda group: f"{data['sizes'][group[0]['preset']]['parameters']:,}",
        "correct sentences": lambda group: percent(mean(group, "sentences")),
    }
    return [grouped_table(caption, data["runs"], ("order", "preset"), columns)]
