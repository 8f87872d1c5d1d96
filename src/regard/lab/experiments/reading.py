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
from matplotlib.colors import LinearSegmentedColormap
from torch import Generator, Tensor

from regard.data import pad
from regard.lab import datasets
from regard.lab.context import ExperimentContext
from regard.lab.estimates import column, difference, first, grouped_table, interval, mean, spread
from regard.lab.experiment import Claim, Data, Plot, ReportTable, Rows, verdict
from regard.lab.plots import new_figure
from regard.lab.small_models import (
    IGNORED,
    TaskBatch,
    count_parameters,
    match_width,
    seeded,
    train,
)
from regard.models import LANGUAGE_MODELS
from regard.models.language_model import LanguageModel
from regard.seeing.draw.shapes import STOPS, ink
from regard.symbols import EOS, PAD, SYMBOLS

RNN, LSTM = "RNN", "LSTM"
SELF_RNN, SELF_LSTM = "self-attentive RNN", "self-attentive LSTM"
#: self-attentive models, and the same cell without attention
PLAIN: Final = {SELF_RNN: RNN, SELF_LSTM: LSTM}
#: cell and preset of each model
MODELS: Final = {
    RNN: ("rnn", "rnn"),
    SELF_RNN: ("rnn", "self-attentive"),
    LSTM: ("lstm", "rnn"),
    SELF_LSTM: ("lstm", "self-attentive"),
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
#: a weight is clearly above even from one and a half times even weights on
CLEARLY: Final = 1.5
QUICK: Final = {
    "words": 2000, "embed": 48, "hidden": 64, "dropout": 0.1, "batch": 40, "steps": 150,
    "rate": 1e-2, "tests": 600,
}  # fmt: skip
FULL: Final = {
    "words": 10_000, "embed": 256, "hidden": 320, "dropout": 0.4, "batch": 256, "steps": 2000,
    "rate": 3e-3, "tests": 4000,
}  # fmt: skip


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
    cell, preset = MODELS[name]
    sizes: dict[str, Any] = {"embed": embed, "hidden": hidden, "layers": 1, "cell": cell}
    model: LanguageModel = LANGUAGE_MODELS[preset](vocab, dropout=dropout, **sizes)
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
    tests: int,
    device: torch.device,
    **budget: Any,
) -> dict[str, Any]:
    """Train one model, as large as the LSTM at `hidden`; return its losses and its weights."""
    text = load(data, words)
    size = len(text.vocab) + len(SYMBOLS)
    wanted = count_parameters(build, LSTM, size, embed, dropout, hidden)
    make = partial(build, name, size, embed, dropout)
    width, parameters = match_width(make, wanted, name=name)
    model = seeded(seed, make, width)
    draw = partial(draw_batch, text.train)
    train(model, draw, batch=batch, seed=seed, device=device, **budget)
    tested = text.test[:: max(1, len(text.test) // tests)]
    result = {"parameters": parameters, "width": width, "nats": nats(model, tested, batch, device)}
    return result | (attention_weights(model, text, device) if name in PLAIN else {})


@torch.no_grad()
def nats(
    model: LanguageModel, sentences: Sequence[list[int]], batch: int, device: torch.device
) -> float:
    """Return the loss per word, in nats."""
    total, count = 0.0, 0
    for start in range(0, len(sentences), batch):
        (tokens,), targets = collate(sentences[start : start + batch]).to(device)
        logits = model.eval()(tokens).logits.transpose(1, 2)
        total += float(F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum"))
        count += int((targets != IGNORED).sum())
    return total / count


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
    return {
        "lecture": _rounded(weights([datasets.encode(LECTURE, text.vocab)])[0]),
        "frames": len(frames),
        "verb_row": _rounded(rows.mean(dim=0, keepdim=True))[0],
        "subject_first": float((rows[:, :VERB].argmax(dim=1) == SUBJECT).float().mean()),
    }


def _rounded(rows: Tensor) -> list[list[float]]:
    return [[round(w, 5) for w in row] for row in rows.tolist()]


def measure(context: ExperimentContext) -> Data:
    """Train every model with every seed, on the same sentences in the same order."""
    settings: dict[str, Any] = context.choose(QUICK, FULL)
    data, axes = context.folder_with(datasets.PENN), {"name": MODELS, "seed": context.seeds}
    runs = context.grid("{name}, seed {seed}", learn, axes, data=data, **settings)
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


def judge(data: Data) -> list[Claim]:
    """Judge where the verb looks, and whether attention to the past is a stronger memory."""
    missing = sorted({LECTURE[SUBJECT], LECTURE[VERB]} & set(data["unknown"]))
    # its own sentence decides nothing where the text lacks its words
    each = [t for name in PLAIN for t in times_even(data, name, frames=bool(missing))]
    clear = sum(times >= CLEARLY for times in each)
    looks = [f"Trained on {data['set']}, which lacks {', '.join(missing) or 'no word of it'}."]
    for name in PLAIN:
        own, frames = (
            ", ".join(f"{times:.2f}" for times in times_even(data, name, frames=all_))
            for all_ in (False, True)
        )
        first = mean(data["runs"], "subject_first", name=name).mean
        count = column(data["runs"], "frames", name=name)[0]
        looks.append(
            f"The {name} gives the subject {own} times even weights, seed by seed. In {count} "
            f"sentences of this form the {name} gives subjects {frames} times, and in {first:.0%} "
            "of them the subject gets the largest weight of all words before the verb."
        )
    looks.append(f"Clearly above even, {CLEARLY} times, are {clear} of {len(each)} runs.")
    losses = {name: column(data["runs"], "nats", name=name) for name in MODELS}
    gains = {name: difference(losses[name], losses[plain]) for name, plain in PLAIN.items()}
    better = [gain.high < 0 for gain in gains.values()]
    listed = "; ".join(
        f"{name} {perplexity(losses[name])} beside {PLAIN[name]} {perplexity(losses[PLAIN[name]])},"
        f" a difference of {spread(gain, 3)} nats per word"
        for name, gain in gains.items()
    )
    return [
        Claim(
            "document 1, slide 33",
            'At "chasing", the self-attentive RNN gives "FBI" a very high weight.',
            verdict(2 * clear >= len(each), clear == len(each)),
            " ".join(looks),
        ),
        Claim(
            "document 1, 4",
            "Attention to all words so far is a stronger memory than an RNN's state.",
            verdict(any(better), all(better)),
            f"Perplexity on {data['set']} at equal numbers of parameters and steps: {listed} (95% "
            f"intervals over {len(data['seeds'])} seeds; below 0 is better). Perplexity rewards "
            f"whatever helps to predict the next word.",
        ),
    ]


def perplexity(nats: Sequence[float]) -> str:
    """Format the perplexity of losses per word."""
    return spread(interval([math.exp(loss) for loss in nats]))


def draw(data: Data) -> list[Plot]:
    """Draw each word's weights over the words so far."""
    figure, axes = new_figure(rows=2)
    figure.set_size_inches(8.0, 7.2)
    inks = LinearSegmentedColormap.from_list("ink", STOPS)
    words = [f"{word}?" if word in data["unknown"] else word for word in LECTURE]
    for panel, name in zip(axes, PLAIN, strict=True):
        weights = torch.tensor(column(data["runs"], "lecture", name=name)).mean(dim=0).tolist()
        panel.imshow(weights, cmap=inks, vmin=0, vmax=1, aspect="auto")
        for row, line in enumerate(weights):
            for at, weight in enumerate(line[: row + 1]):
                label = f"{words[at]} {100 * weight:.0f}"
                panel.text(at, row, label, color=ink(weight), ha="center", va="center", size=8)
        panel.set_title(f"{name}: where each word looks back", fontsize=10)
        panel.set_yticks(range(len(words)), words)
        panel.set_xticks([])
        panel.grid(visible=False)
    caption = (
        f'"{" ".join(words)}", read word by word from top to bottom, as on slide 33: a row is the '
        "word being read, and the words up to it are the darker the more weight they get; "
        f"the mean of {len(data['seeds'])} seeds, trained on {data['set']}. Words with a question "
        "mark are not in that text."
    )
    return [Plot("lecture", caption, figure)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate perplexity and size of each model, and the verb's weights by seed."""
    caption = (
        f"{data['set']}: {data['sentences']:,} sentences, {data['words']:,} words, "
        f"{data['steps']} steps of {data['batch']} sentences, {len(data['seeds'])} seeds."
    )
    columns = {
        "model": first("name"),
        "parameters": first("parameters", ","),
        "width": first("width"),
        "perplexity (95% interval)": lambda group: perplexity(column(group, "nats")),
    }

    def looked(place: int, group: Rows) -> str:
        return f"{group[0]['lecture'][VERB][place]:.2f}"

    verbs = {"model": first("name"), "seed": first("seed")}
    verbs |= {word: partial(looked, place) for place, word in enumerate(LECTURE[: VERB + 1])}
    attentive = [row for row in data["runs"] if row["name"] in PLAIN]
    return [
        grouped_table(caption, data["runs"], ("name",), columns),
        grouped_table('Weights of "chasing".', attentive, ("name", "seed"), verbs),
    ]
