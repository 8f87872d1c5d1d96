"""A span of the passage that answers a question."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from regard.data import Pair, Story, Tokenizer
from regard.data.error_hints import (
    REFUSED_SHARE,
    SETTING_HINTS,
    BadLine,
    BadLines,
    report_left_out,
    shorten,
)
from regard.messages import message
from regard.models import SPAN_PRESETS
from regard.tasks.outputs.tokens import TokenOutput
from regard.tasks.settings import Say, Settings

#: most tokens of an answer that is pointed at, the default of the preset
LONGEST: Final = 20


class SpanOutput(TokenOutput):
    """Words of the passage, which the model points at."""

    name = "span"
    only = ("story", "a span is pointed at in a passage, by a question")
    default_preset = "span"

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the preset points at spans."""
        return settings.preset in SPAN_PRESETS

    @classmethod
    def check_pair(cls, pair: Pair) -> Pair:
        """Return a pair whose answer stands in the passage; raises BadLine for another."""
        if pair.tgt not in Story.of(pair.src).text:
            raise BadLine(
                "answer not in its passage",
                f"the answer must stand in the passage, but {shorten(pair.tgt)} does not",
                "write it as the passage does, or choose a preset that writes answers, such as "
                "pointer",
            )
        return pair

    def usable(
        self, pairs: Iterable[Pair], *, file: str, skip_bad: bool, say: Say
    ) -> Iterable[Pair]:
        """Return the examples, with answers cut into tokens as they are in their passage."""
        return self._pointed(pairs, file, say, allowed=skip_bad)

    def _pointed(
        self, pairs: Iterable[Pair], file: str, say: Say, *, allowed: bool
    ) -> Iterator[Pair]:
        """Yield examples whose answers are tokens of the passage, perhaps with what is before."""
        bad = BadLines(True, advice=SETTING_HINTS)
        most, long, total, longest = int(self.settings.model.get("longest", LONGEST)), 0, 0, 0
        for total, pair in enumerate(pairs, start=1):  # noqa: B007  the number is used at the end
            (row,) = self.input.encoder.encode([pair.src])
            found = next((t for t in _widened(pair) if self._stands_in(row, t)), None)
            if found is None:
                bad.add(file, pair.line, _other_tokens(pair))
            elif (size := len(self.tokenizer.encode(found))) > most:
                long, longest = long + 1, max(longest, size)
            else:
                yield pair if found == pair.tgt else pair._replace(tgt=found, more=(pair.tgt,))
        note = message("train.long-answers", file=file, count=long, most=most)
        report_left_out(file, long, total, note, f"longest={longest}", say, allowed=allowed)
        if bad.total > REFUSED_SHARE * total and not allowed:
            raise bad.first[0]
        if bad.total:
            say(message("train.of-file", file=file, text=bad))

    def _stands_in(self, row: list[int], answer: str) -> bool:
        """Return whether the tokens of an answer stand in a row."""
        ids = self.tokenizer.encode(answer)
        places = range(len(row) - len(ids))
        return bool(ids) and any(row[i : i + len(ids)] == ids for i in places)

    def network_options(self) -> dict[str, Any]:
        """Return for each token the same in lower case."""
        return {"folded": folded_tokens(self.tokenizer)}

    def default_metric(self) -> str:
        """Return F1 of words."""
        return "f1"

    def output_notes(self, predictions: Sequence[str], pairs: Sequence[Pair]) -> tuple[str, ...]:
        """Return nothing: all words are copied."""
        return ()


def _widened(pair: Pair) -> Iterator[str]:
    """Yield the answer and, since tokens depend on what is before it, the words that it is in."""
    yield pair.tgt
    text = Story.of(pair.src).text
    start = text.find(pair.tgt)
    while start >= 0:
        first = text.rfind(" ", 0, start) + 1
        yield text[first : start + len(pair.tgt)]
        start = text.find(pair.tgt, start + 1)


def _other_tokens(pair: Pair) -> BadLine:
    return BadLine(
        "answer of other tokens",
        f"the answer must be whole tokens of the passage, but {shorten(pair.tgt)} is not",
        "let it begin and end where a word does, or cut texts into characters with "
        "src_tokenizer=char",
    )


def folded_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return for each token the id of the same in lower case, or its own if there is none."""
    labels = tokenizer.tokens(range(tokenizer.vocab_size))
    last = tokenizer.vocab_size - len(tokenizer.features)
    ids = {label: i for i, label in enumerate(labels[:last])}
    return [ids.get(label.lower(), i) if i < last else i for i, label in enumerate(labels)]
