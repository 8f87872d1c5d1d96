"""Self-attentive language models: their perplexity, and where a verb looks.

Question: Does a self-attentive RNN remember more, and does "chasing" look at "FBI"?

Method: Language models of one layer read sentences one at a time and predict each next word: a
plain RNN and an LSTM, and both with attention to all words so far, the first as in the lecture (h_t
from x_t and the last context, scaled dot-product), the second as in Cheng et al. (2016). All have
as many parameters as the LSTM, within 5%, and read the same sentences in the same order. Words
beyond the vocabulary (2,000 words in a quick run) are one unknown word, and the first word of a
sentence is given, so that perplexities are comparable within a run, not with published ones. The
text is the Penn Treebank if the data folder has it, and bundled Shakespeare if not. Then they read
the lecture's sentence, and sentences of its form, the X is V-ing, with all subjects and verbs of a
list that the text has; even weights are 1 divided by the number of words that may be attended to.
"""

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Generator, Tensor

from regard.data import pad
from regard.lab import datasets
from regard.lab.context import ExperimentContext, MeanInterval, difference, interval, spread
from regard.lab.experiment import Claim, Data, Plot, ReportTable, column, verdict
from regard.lab.plots import COLOURS, draw_lines, legend, new_figure
from regard.lab.small_models import (
    IGNORED,
    LogitsOnly,
    TaskBatch,
    count_parameters,
    match_width,
    seeded,
    train,
)
from regard.models import LANGUAGE_MODELS
from regard.models.language_model import LanguageModel
from regard.seeing.draw.shapes import MARK, colour, ink
from regard.symbols import EOS, PAD, SYMBOLS, UNK

RNN, LSTM = "RNN", "LSTM"
SELF_RNN, SELF_LSTM = "self-attentive RNN", "self-attentive LSTM"
#: self-attentive models, and the same cell without attention
PLAIN: Final = {SELF_RNN: RNN, SELF_LSTM: LSTM}
#: cell and preset of each model
MODELS: Final[dict[str, tuple[str, Any]]] = {
    RNN: ("rnn", LANGUAGE_MODELS["rnn"]),
    SELF_RNN: ("rnn", LANGUAGE_MODELS["self-attentive"]),
    LSTM: ("lstm", LANGUAGE_MODELS["rnn"]),
    SELF_LSTM: ("lstm", LANGUAGE_MODELS["self-attentive"]),
}
LECTURE: Final = ("the", "fbi", "is", "chasing", "a", "criminal", "on", "the", "run")
#: places in the lecture's sentence
SUBJECT, VERB = 1, 3
#: words that the verb may attend to: the lecture's cell sees itself, the LSTM its past alone
CHOICES: Final = {SELF_RNN: VERB + 1, SELF_LSTM: VERB}
#: words of sentences of the lecture's form; those that the text has are used
SUBJECTS: Final = (
    "fbi", "company", "government", "bank", "president", "court", "army", "firm", "senate",
    "king", "queen", "duke", "prince", "lord", "soldier", "father", "boy",
)  # fmt: skip
VERBS: Final = (
    "chasing", "buying", "selling", "seeking", "making", "taking", "losing", "planning",
    "coming", "going", "speaking", "leaving", "running", "crying", "standing",
)  # fmt: skip
#: last word of each range of positions; the first word of a sentence is given, not predicted
POSITIONS: Final = (3, 6, 11, 21, 60)
#: a weight is clearly above even from one and a half times even weights on
CLEARLY: Final = 1.5


class EncodedText(NamedTuple):
    """Sentences as ids, sorted by length, with their vocabulary."""

    name: str
    train: Sequence[list[int]]
    test: Sequence[list[int]]
    vocab: dict[str, int]


@cache
def load(data: str | None, size: int) -> EncodedText:
    """Return the Penn Treebank, or Shakespeare if `data` is None, with the most frequent words."""
    text = datasets.sentences(data)
    vocab = datasets.vocabulary(text, size, (*LECTURE, *SUBJECTS, *VERBS))
    train, test = (
        sorted((datasets.encode(s, vocab) for s in part), key=len)
        for part in (text.train, text.test)
    )
    return EncodedText(text.name, train, test, vocab)


def collate(sentences: Sequence[list[int]]) -> TaskBatch:
    """Return words as inputs and the next words, then `eos`, as targets."""
    tokens, _ = pad(sentences)
    targets, _ = pad([[*sentence[1:], EOS] for sentence in sentences])
    return TaskBatch((tokens,), targets.masked_fill(targets == PAD, IGNORED))


def draw_batch(sentences: Sequence[list[int]], count: int, generator: Generator) -> TaskBatch:
    """Draw neighbours among the sorted sentences, so that there is little padding."""
    start = int(torch.randint(max(1, len(sentences) - count + 1), (1,), generator=generator))
    return collate(sentences[start : start + count])


def build(name: str, vocab: int, embed: int, dropout: float, hidden: int) -> LanguageModel:
    """Build a model of one layer by name."""
    cell, make = MODELS[name]
    sizes = {"embed": embed, "hidden": hidden, "layers": 1, "cell": cell, "dropout": dropout}
    model: LanguageModel = make(vocab, **sizes)
    return model


def learn(
    *,
    name: str,
    seed: int,
    data: str | None,
    words: int,
    embed: int,
    hidden: int,
    dropout: float,
    batch: int,
    steps: int,
    rate: float,
    tests: int,
    device: torch.device,
) -> dict[str, Any]:
    """Train one model, as large as the LSTM at `hidden`; return its losses and its weights."""
    text = load(data, words)
    size = len(text.vocab) + len(SYMBOLS)
    wanted = count_parameters(build, LSTM, size, embed, dropout, hidden)
    make = partial(build, name, size, embed, dropout)
    width, parameters = match_width(make, wanted, name=name)
    model = seeded(seed, make, width)
    draw = partial(draw_batch, text.train, batch)
    train(LogitsOnly(model), draw, steps=steps, lr=rate, seed=seed, device=device)
    tested = text.test[:: max(1, len(text.test) // tests)]
    result = {"parameters": parameters, "width": width, **losses(model, tested, batch, device)}
    return result | (attention_weights(model, text, device) if name in PLAIN else {})


@torch.no_grad()
def losses(
    model: LanguageModel, sentences: Sequence[list[int]], batch: int, device: torch.device
) -> dict[str, Any]:
    """Return nats per word, over all words and by position in the sentence."""
    model.eval()
    sums, counts = torch.zeros(len(POSITIONS)), torch.zeros(len(POSITIONS))
    for start in range(0, len(sentences), batch):
        (tokens,), targets = collate(sentences[start : start + batch]).to(device)
        logits = model(tokens).logits
        loss = F.cross_entropy(
            logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none"
        )
        places = torch.arange(2, targets.shape[1] + 2)  # target t is word t + 2 of its sentence
        row = torch.bucketize(places, torch.tensor(POSITIONS)).clamp(max=len(POSITIONS) - 1)
        sums.index_add_(0, row, loss.sum(dim=0).cpu())
        counts.index_add_(0, row, (targets != IGNORED).sum(dim=0).float().cpu())
    nats = sums / counts
    return {"nats": float(sums.sum() / counts.sum()), "by_place": nats.tolist()}


@torch.no_grad()
def attention_weights(
    model: LanguageModel, text: EncodedText, device: torch.device
) -> dict[str, Any]:
    """Return the weights in the lecture's sentence, and of verbs over subjects in its form."""
    model.eval()

    def weights(sentences: list[list[int]]) -> Tensor:
        tokens, _ = pad(sentences)
        (found,) = model(tokens.to(device), need_weights=True).maps["decoder-history"]
        single: Tensor = found[:, 0].cpu()  # (sentences, words, words)
        return single

    subjects, verbs = ([w for w in words if w in text.vocab] for words in (SUBJECTS, VERBS))
    frames = [("the", subject, "is", verb) for subject in subjects for verb in verbs]
    rows = weights([datasets.encode(frame, text.vocab) for frame in frames])[:, VERB]
    known = {i: word for word, i in text.vocab.items()}
    own = min((s for s in text.test if len(s) == len(LECTURE)), key=lambda s: s.count(UNK))
    return {
        "lecture": _rounded(weights([datasets.encode(LECTURE, text.vocab)])[0]),
        "own": _rounded(weights([own])[0]),
        "own_words": [known.get(i, "?") for i in own],
        "frames": len(frames),
        "verb_row": _rounded(rows.mean(dim=0, keepdim=True))[0],
        "subject_first": float((rows[:, :VERB].argmax(dim=1) == SUBJECT).float().mean()),
    }


def _rounded(rows: Tensor) -> list[list[float]]:
    return [[round(w, 5) for w in row] for row in rows.tolist()]


def measure(context: ExperimentContext) -> Data:
    """Train every model with every seed, on the same sentences in the same order."""
    data = datasets.folder_with(context.data, datasets.PENN)
    settings: dict[str, Any] = {
        "data": data,
        "words": context.choose(2000, 10_000),
        "embed": context.choose(48, 256),
        "hidden": context.choose(64, 320),
        "dropout": context.choose(0.1, 0.4),
        "batch": context.choose(40, 256),
        "steps": context.choose(150, 2000),
        "rate": context.choose(1e-2, 3e-3),
        "tests": context.choose(600, 4000),
    }
    axes = {"name": MODELS, "seed": context.seeds}
    runs = context.grid("{name}, seed {seed}", learn, axes, **settings)
    text = load(data, settings["words"])
    return {
        "set": text.name,
        "unknown": [word for word in dict.fromkeys(LECTURE) if word not in text.vocab],
        "words": len(text.vocab),
        "sentences": len(text.train),
        "steps": settings["steps"],
        "batch": settings["batch"],
        "seeds": list(context.seeds),
        "runs": runs,
    }


def judge(data: Data) -> list[Claim]:
    """Judge where the verb looks, and whether attention to the past is a stronger memory."""
    return [_chasing(data), _memory(data)]


def times_even(data: Data, name: str, *, frames: bool) -> list[float]:
    """Return the verb's weight on the subject as a multiple of even weights, by seed.

    Args:
        data: measured data.
        name: a self-attentive model.
        frames: take the mean over all sentences of the lecture's form, not its own sentence.
    """
    lecture = [weights[VERB] for weights in column(data["runs"], "lecture", name=name)]
    rows = column(data["runs"], "verb_row", name=name) if frames else lecture
    return [row[SUBJECT] * CHOICES[name] for row in rows]


def _chasing(data: Data) -> Claim:
    unknown = {LECTURE[SUBJECT], LECTURE[VERB]} & set(data["unknown"])
    found = {name: times_even(data, name, frames=bool(unknown)) for name in PLAIN}
    each = [times for name in PLAIN for times in found[name]]
    clear = sum(times >= CLEARLY for times in each)
    frames = column(data["runs"], "frames", name=SELF_RNN)[0]
    intro = f"Trained on {data['set']}, the verb's weight on the subject, seed by seed:"
    if unknown:
        intro = (
            f"{data['set']} does not have {' and '.join(sorted(unknown))}, so that the lecture's "
            f"own sentence decides nothing. In {frames} sentences of its form, with words that the "
            f"text has, the mean weight of verbs on subjects, seed by seed:"
        )
    sentences = [
        intro,
        *(f"{name}: {_list(found[name])} times even weights." for name in PLAIN),
        f"That is clearly above even, {CLEARLY} times, in {clear} of {len(each)} runs.",
    ]
    for name in () if unknown else PLAIN:
        shares = column(data["runs"], "subject_first", name=name)
        first = 100 * sum(shares) / len(shares)
        sentences.append(
            f"In {frames} sentences of this form the {name} gives subjects "
            f"{_list(times_even(data, name, frames=True))} times, and in {first:.0f}% of them "
            f"the subject gets the largest weight of all words before the verb."
        )
    return Claim(
        source="document 1, slide 33",
        text='At "chasing", the self-attentive RNN gives "FBI" a very high weight.',
        verdict=verdict(2 * clear >= len(each), clear == len(each)),
        evidence=" ".join(sentences),
    )


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _memory(data: Data) -> Claim:
    nats = {name: column(data["runs"], "nats", name=name) for name in MODELS}
    gains = {name: difference(nats[name], nats[PLAIN[name]]) for name in PLAIN}
    better = [gain.high < 0 for gain in gains.values()]
    listed = "; ".join(
        f"{name} {_perplexity(data, name)} beside {PLAIN[name]} {_perplexity(data, PLAIN[name])}, "
        f"a difference of {spread(gain, 3)} nats per word"
        for name, gain in gains.items()
    )
    places = []
    for name in PLAIN:
        first, *_, last = gains_by_place(data, name)
        places.append(
            f"{name} {spread(first, 2)} at words 2 to {POSITIONS[0]}, {spread(last, 2)} "
            f"from word {POSITIONS[-2] + 1} on"
        )
    return Claim(
        source="document 1, 4",
        text="Attention to all words so far is a stronger memory than an RNN's state.",
        verdict=verdict(any(better), all(better)),
        evidence=(
            f"Perplexity on {data['set']} at equal numbers of parameters and steps: {listed} (95% "
            f"intervals over {len(data['seeds'])} seeds; below 0 is better). Perplexity rewards "
            f"whatever helps to predict the next word. Were it memory, the gain would grow with "
            f"the position of the word in its sentence: {'; '.join(places)}."
        ),
    )


def gains_by_place(data: Data, name: str) -> list[MeanInterval]:
    """Return the nats per word that attention saves at each range of positions."""
    plain, own = (column(data["runs"], "by_place", name=n) for n in (PLAIN[name], name))
    return [
        difference([run[row] for run in plain], [run[row] for run in own])
        for row in range(len(POSITIONS))
    ]


def _perplexity(data: Data, name: str) -> str:
    return spread(interval([math.exp(nats) for nats in column(data["runs"], "nats", name=name)]))


def draw(data: Data) -> list[Plot]:
    """Draw each word's weights as the lecture draws them, and the gain of attention."""
    lecture = [
        f"{word}?" if word in data["unknown"] else word.upper() if word == "fbi" else word
        for word in LECTURE
    ]
    plots = [_maps(data, "lecture", lecture), _gains(data)]
    if data["unknown"]:
        plots.insert(1, _maps(data, "own", column(data["runs"], "own_words", name=SELF_RNN)[0]))
    return plots


def _maps(data: Data, key: str, words: Sequence[str]) -> Plot:
    figure, axes = new_figure(rows=2)
    figure.set_size_inches(8.0, 7.2)
    for panel, name in zip(axes, PLAIN, strict=True):
        tables = torch.tensor(column(data["runs"], key, name=name))
        _draw_words(panel, tables.mean(dim=0).tolist(), words)
        panel.set_title(f"{name}: where each word looks back", fontsize=10)
    caption = (
        f'"{" ".join(words)}", read word by word from top to bottom, as on slide 33: the word '
        f"being read is framed, and the words up to it are the darker the more weight they get; "
        f"the mean of {len(data['seeds'])} seeds, trained on {data['set']}."
    )
    if key == "lecture" and data["unknown"]:
        caption += " Words with a question mark are not in that text: the model sees one symbol."
    return Plot(key, caption, figure)


def _draw_words(axes: Axes, weights: Sequence[Sequence[float]], words: Sequence[str]) -> None:
    """Draw one line of words for each word, up to it, shaded by weight."""
    for row, line in enumerate(weights):
        for at, word in enumerate(words[: row + 1]):
            weight, corner = line[at], (at + 0.03, row + 0.05)
            edge = MARK if at == row else "none"
            box = Rectangle(corner, 0.94, 0.9, facecolor=colour(weight), edgecolor=edge, lw=1.4)
            axes.add_patch(box)
            label = f"{word} {100 * weight:.0f}"
            axes.text(
                at + 0.5, row + 0.52, label, color=ink(weight), ha="center", va="center", size=8
            )
    axes.set_xlim(0, len(words))
    axes.set_ylim(len(words), 0)
    axes.set_axis_off()


def _gains(data: Data) -> Plot:
    figure, (axes,) = new_figure()
    rows = range(len(POSITIONS))
    lines = {f"{name}\nover {PLAIN[name]}": gains_by_place(data, name) for name in PLAIN}
    draw_lines(axes, rows, lines)
    axes.axhline(0, color=COLOURS[-1], linewidth=1)
    starts = [2, *(last + 1 for last in POSITIONS[:-1])]
    axes.set_xticks(rows, [f"{a}-{b}" for a, b in zip(starts, POSITIONS, strict=True)])
    axes.set_xlabel("position of the predicted word in its sentence")
    axes.set_ylabel("gain (nats per word)")
    axes.set_title(f"Gain of attention to the past by position: {data['set']}")
    legend(axes)
    caption = (
        "Nats per word that attention to the past saves over the same cell without it, of equal "
        f"size; above 0 is better. Means of {len(data['seeds'])} seeds, 95% bands."
    )
    return Plot("places", caption, figure)


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate perplexity and size of each model, and the verb's weights by seed."""
    sizes = []
    for name in MODELS:
        parameters, width = (
            column(data["runs"], what, name=name)[0] for what in ("parameters", "width")
        )
        sizes.append([name, f"{parameters:,}", f"{width}", _perplexity(data, name)])
    caption = (
        f"{data['set']}: {data['sentences']:,} sentences, {data['words']:,} words, "
        f"{data['steps']} steps of {data['batch']} sentences, {len(data['seeds'])} seeds."
    )
    looked = [
        [name, str(seed), *(f"{w:.2f}" for w in weights[VERB][: VERB + 1])]
        for name in PLAIN
        for seed, weights in zip(
            data["seeds"], column(data["runs"], "lecture", name=name), strict=True
        )
    ]
    columns = ["model", "parameters", "width", "perplexity (95% interval)"]
    return [
        ReportTable(caption, columns, sizes),
        ReportTable('Weights of "chasing".', ["model", "seed", *LECTURE[: VERB + 1]], looked),
    ]
