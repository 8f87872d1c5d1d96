"""Models that come with the package, by name."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from regard import safe_read
from regard.errors import ArgumentError, DataError
from regard.evaluation import format_metric
from regard.messages import interval_text, language, message, translated
from regard.training import RunError, RunFolder
from regard.training.run_folder import BUNDLED

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


HOME: Final = BUNDLED
#: the model of commands that name none
DEFAULT: Final = "g2p"


def names() -> list[str]:
    """Return the names of the bundled models."""
    return sorted(folder.name for folder in HOME.iterdir() if RunFolder(folder).started)


def find(run: str | Path) -> Path:
    """Return the folder of a run: the user's own, or that of a bundled model of this name.

    A folder of the user goes before a bundled model of the same name, with a note on stderr.
    Raises RunError for what does not exist.
    """
    path, bundled = Path(run), names()
    is_bundled = str(path) in bundled
    if path.is_dir():
        if is_bundled:
            print(
                f"regard: {path} is a folder here, which is used; the bundled model is in "
                f"{HOME / path}.",
                file=sys.stderr,
            )
        return path
    if is_bundled:
        return HOME / path
    if not bundled:
        return path
    raise RunError(
        f"{path} must be a run folder or a bundled model, but it is no folder: give the folder "
        f"that `regard train` or `save_pretrained` of transformers has written, or one of "
        f"{', '.join(bundled)}."
    )


def is_run(run: str | Path) -> bool:
    """Return whether this can be a run, rather than a file of sources."""
    path = Path(run)
    return path.is_dir() or (not path.exists() and str(path) in names())


def is_run_folder(run: str | Path) -> bool:
    """Return whether this is a run folder, or a bundled model; a folder of data is not."""
    path = Path(run)
    return RunFolder(path).started if path.is_dir() else is_run(path)


def default() -> str:
    """Return the name of the model that is used if none is named."""
    bundled = names()
    if not bundled:
        raise ArgumentError(
            "RUN", "be given, since no model is bundled", "missing", "name a run folder"
        )
    return DEFAULT if DEFAULT in bundled else bundled[0]


def card(name: str) -> BundledCard | None:
    """Return the card of a bundled model; None if it has none."""
    return BundledCard.read(HOME / name)


def size(name: str) -> int:
    """Return the bytes of a bundled model."""
    return sum(file.stat().st_size for file in (HOME / name).iterdir())
