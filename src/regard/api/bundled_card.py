"""Cards of bundled models: `card.json`, which the packer writes, and the page that it becomes."""

import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from regard import safe_read
from regard.errors import DataError
from regard.evaluation import format_metric
from regard.messages import interval_text, language, message, translated

FILE: Final = "card.json"


class CardPart(BaseModel):
    """A part of a card; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CardText(CardPart):
    """Sentences about a model in one language.

    Attributes:
        what: what it does, as a phrase.
        reads: what it reads, worded to follow "it reads".
        data: what it has learned from.
        limits: what it is not good at, a sentence each.
    """

    what: str
    reads: str
    data: str
    limits: tuple[str, ...]


class CardScore(CardPart):
    """A metric on a test set, with its 95% confidence interval.

    Attributes:
        set: name of the test set, or of a group of it.
        rows: number of its examples.
        metric: name of the metric; `perplexity` of a language model is per token.
        value: a share for metrics of shares, else points.
        low: lower end of the interval,
        high: and upper end; both None if there is no interval.
        signature: how it was computed.
    """

    set: str
    rows: int
    metric: str
    value: float
    low: float | None
    high: float | None
    signature: str

    @property
    def label(self) -> str:
        """The metric as it is called in the current language."""
        return translated("metric", self.metric)

    def shown(self, number: float) -> str:
        """Return a number in the metric's unit."""
        return format_metric(self.metric, number)

    @property
    def ends(self) -> str:
        """The ends of the interval."""
        return interval_text(self.low, self.high, self.shown)

    def __str__(self) -> str:
        score = f"{self.label} {self.shown(self.value)}"
        if self.low is None:
            return message("evaluate.with-range", value=score, range=self.ends)
        return message("card.interval", score=score, ends=self.ends)


class CardFacts(CardPart):
    """Facts on a bundled model; all numbers are measured by the packer.

    Attributes:
        name: by which users load it.
        text: sentences by language.
        examples: sources to try, the best first.
        answers: of the model to each of them; none of a language model.
        continues: whether it is a language model.
        scores: of the stored weights, the main one first.
        scores_32: of the weights before they were stored in fewer bits.
        beam: width of the search.
        preset: the architecture.
        weights: number of weights.
        bits: of a stored weight; vectors have 16 in any case.
        ms_per_source: median milliseconds per source, one at a time.
        threads: with which it was timed.
        licence: of the data; the package's own is Apache-2.0.
        attribution: to whom the data are due, in one line.
        trained: device, duration and versions of the training.
        packed: versions of the packer.
        command: trains it again.
        settings: that are not defaults.
        mistakes: source, prediction and reference of some test rows.
    """

    name: str
    text: dict[str, CardText]
    examples: tuple[str, ...]
    answers: tuple[str, ...] = ()
    continues: bool
    scores: tuple[CardScore, ...]
    scores_32: tuple[CardScore, ...]
    beam: int
    preset: str
    weights: int
    bits: int
    ms_per_source: float
    threads: int
    licence: str
    attribution: str
    trained: str
    packed: str
    command: str
    settings: dict[str, Any]
    mistakes: tuple[tuple[str, str, str], ...]


class BundledCard(CardFacts):
    """The card of a bundled model, with what pages and commands say of it."""

    @staticmethod
    def read(folder: Path) -> "BundledCard | None":
        """Return the card of a folder, or None if it has none; raises DataError if damaged."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            return BundledCard.model_validate(safe_read.read_json(path, inside=folder))
        except ValidationError as error:
            reason = f"this is not the card of a model ({safe_read.explain(error)})"
            raise DataError(str(path), None, reason, "install regard again") from None

    def write(self, folder: Path) -> None:
        """Write the card to a folder."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False)
        (folder / FILE).write_text(f"{text}\n", encoding="utf-8")

    @property
    def said(self) -> CardText:
        """The sentences in the current language, or in English."""
        return self.text.get(language()) or self.text["en"]

    @property
    def score(self) -> CardScore:
        """The main score."""
        return self.scores[0]

    @property
    def show_commands(self) -> list[str]:
        """The commands that draw each example."""
        return [f"regard show {self.name} {shlex.quote(text)}" for text in self.examples]

    @property
    def prompt(self) -> str:
        """A source for `regard predict`: an example, or the beginning of one if it continues."""
        first = self.examples[0]
        return " ".join(first.split()[:3]) if self.continues else first

    @property
    def scored_on(self) -> str:
        """The rows of the main score."""
        rows = {"set": self.score.set, "rows": self.score.rows}
        if self.continues:
            return message("card.texts", **rows)
        return message("card.rows", beam=self.beam, **rows)

    @property
    def loss(self) -> str:
        """Bits of a stored weight, and each metric of the main set before and after."""
        both = list(zip(self.scores, self.scores_32, strict=True))
        if all(after.value == before.value for after, before in both):
            return message("card.same", bits=self.bits)
        changes = (
            message("card.change", score=f"{after.label} {after.shown(after.value)}", before=old)
            for after, before in both
            if after.set == self.score.set
            for old in [before.shown(before.value)]
        )
        return message("card.loss", bits=self.bits, changes=message("card.comma").join(changes))


def render(card: BundledCard, size: int) -> str:
    """Return the card as Markdown, in the current language."""
    said = card.said
    facts = {
        "what": said.what,
        "score": str(card.score),
        "scored-on": card.scored_on,
        "model": message("card.weights", preset=card.preset, weights=card.weights),
        "stored": card.loss,
        "size": megabytes(size),
        "speed": message("card.ms", ms=card.ms_per_source, threads=card.threads),
        "data": said.data,
        "licence": licence(card),
        "trained": card.trained,
        "packed": card.packed,
    }
    rows = [f"| {message(f'card.fact.{name}')} | {_cell(text)} |" for name, text in facts.items()]
    scores = [
        [s.set, f"{s.rows:,}", s.label, s.shown(s.value), s.ends, f"`{s.signature}`"]
        for s in card.scores
    ]
    titles = ("source", "prediction", "reference")
    mistakes = [message("card.mistakes"), _table(titles, card.mistakes)] if card.mistakes else []
    parts = [
        f"# {card.name}",
        message("card.intro", what=said.what),
        "\n".join(["| | |", "|---|---|", *rows]),
        *_use(card),
        f"## {message('card.scores')}",
        _table(("set", "rows", "metric", "value", "interval", "signature"), scores),
        *[message("interval.note")] * any(one.low is None for one in card.scores),
        f"## {message('card.limits')}",
        "\n".join(f"- {sentence}" for sentence in said.limits),
        *mistakes,
        f"## {message('card.again')}",
        _fenced(
            "sh",
            f"{card.command}\npython -m benchmarks.tools.pack_model RUN --name {card.name}",
        ),
        message("card.settings"),
        _fenced("json", json.dumps(card.settings, indent=2, ensure_ascii=False)),
        f"## {message('card.data-licence')}",
        f"{card.attribution} {message('card.notice')}",
    ]
    return "\n\n".join(parts) + "\n"


def licence(card: BundledCard) -> str:
    """Return the licences of the model and of its data."""
    return message("card.licences", data=card.licence)


def megabytes(size: int) -> str:
    """Return a number of bytes in megabytes."""
    return f"{size / 1e6:.1f} MB"


def _use(card: BundledCard) -> Iterator[str]:
    yield f"## {message('card.use')}"
    predict = f"echo {shlex.quote(card.prompt)} | regard predict {card.name}"
    answers = (f"  # {answer}" for answer in card.answers)
    shown = map("".join, zip_longest(card.show_commands, answers, fillvalue=""))
    yield _fenced("sh", "\n".join([*shown, predict, f"regard serve {card.name}"]))
    load = f'model = regard.load("{card.name}")'
    call = f"model({json.dumps(card.prompt, ensure_ascii=False)}).text"
    yield _fenced("python", f"import regard\n\n{load}\n{call}")
    yield message("card.reads", reads=card.said.reads)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = " | ".join(message(f"card.column.{title}") for title in titles)
    cells = (" | ".join(map(_cell, row)) for row in rows)
    return "\n".join([f"| {head} |", "|---" * len(titles) + "|", *(f"| {row} |" for row in cells)])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
