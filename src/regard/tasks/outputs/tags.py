"""A tag for each position of a source, such as parts of speech."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Final

from regard.data import Pair, TargetEncoder
from regard.data.error_hints import SETTING_HINTS, BadLine, BadLines
from regard.errors import ArgumentError, DataError
from regard.evaluation import ClassReport, confusion
from regard.evaluation.classification import are_span_tags, span_rows, unknown_classes
from regard.messages import message
from regard.models import LABEL_PRESETS, TAG_PRESETS
from regard.symbols import SYMBOLS
from regard.tasks.outputs.tokens import TokenOutput
from regard.tasks.settings import Say, Settings
from regard.tasks.tokenizer_training import learn_tokenizer

#: pairs that are tokenised at once
CHUNK: Final = 4096


class TagOutput(TokenOutput):
    """As many tags as the source has positions."""

    name = "tags"
    refuses: ClassVar[Mapping[str, str]] = {"story": "a question about a story has one answer"}
    one_per_input = True
    default_preset = "rnn"

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the preset writes one token per position."""
        return settings.preset in TAG_PRESETS

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings that change lengths."""
        if settings.tgt_tokenizer == "label":
            raise ArgumentError(
                "tgt_tokenizer",
                f"cut targets into tags for the preset {settings.preset}, which writes one for "
                "each token that it reads",
                "'label'",
                f"say space, or choose {', '.join(LABEL_PRESETS)} for one label of a whole source",
            )

    @classmethod
    def learn(cls, settings: Settings, targets: list[str], *, file: str, say: Say) -> TargetEncoder:
        """Learn the tokeniser of tags."""
        return learn_tokenizer(settings, "target", settings.tgt_tokenizer, targets, say)

    def usable(
        self, pairs: Iterable[Pair], *, file: str, skip_bad: bool, say: Say
    ) -> Iterator[Pair]:
        """Yield the pairs whose sides have equally many tokens; another one is a bad line.

        Lengths are known only once the tokenisers are.
        """
        bad, good, rest = BadLines(skip_bad, advice=SETTING_HINTS), 0, iter(pairs)
        while chunk := list(itertools.islice(rest, CHUNK)):
            rows = self.input.rows([self.input.of_pair(pair) for pair in chunk])
            reads = map(self.input.length, rows)
            writes = map(len, self.tokenizer.encode_batch([pair.tgt for pair in chunk]))
            for pair, read, written in zip(chunk, reads, writes, strict=True):
                if read == written:
                    good += 1
                    yield pair
                else:
                    bad.add(file, pair.line, self._unequal(pair, read, written))
        if bad.total and not good:
            first = bad.first[0]
            what = f"all {bad.total:,} pairs are bad ({bad.reasons})"
            raise DataError(file, first.line, f"{what}, this one because {first.reason}", first.fix)
        if bad.total:
            say(message("train.of-file", file=file, text=bad))

    def _unequal(self, pair: Pair, reads: int, writes: int) -> BadLine:
        """Return the error of a pair with another number of targets than of inputs."""
        count, read = len(pair.features), self.input.encoder
        features = f", {count} feature{'s' * (count != 1)} among them" if count else ""
        words_agree = len(pair.src.split()) + count == len(pair.tgt.split())
        first = "add src_tokenizer=space tgt_tokenizer=space" if words_agree else "mend the line"
        return BadLine(
            "other number of tokens",
            f"the preset {self.settings.preset} writes one token for each that it reads, but the "
            f"line has {reads:,} source token{'s' * (reads != 1)} ({read.kind}{features}) "
            f"and {writes:,} target token{'s' * (writes != 1)} ({self.tokenizer.kind})",
            f"{first}, or choose seq2seq or another preset",
        )

    @property
    def _has_spans(self) -> bool:
        """True if the tags mark spans, as `B-PER` and `I-PER` do."""
        ids = range(len(SYMBOLS), self.tokenizer.vocab_size)
        return self.tokenizer.kind == "space" and are_span_tags(self.tokenizer.tokens(ids))

    def default_metric(self) -> str:
        """Return the F1 of spans if the tags mark some."""
        return "span-f1" if self._has_spans else super().default_metric()

    def metrics(self) -> tuple[str, ...]:
        """Return metrics of tags, and of the spans that they mark."""
        return ("span-f1", "tag-accuracy") if self._has_spans else ("tag-accuracy", "exact")

    def output_notes(self, predictions: Sequence[str], pairs: Sequence[Pair]) -> tuple[str, ...]:
        """Return how many lines have another number of tags than the model writes."""
        right = self.tokenizer.encode_batch([pair.tgt for pair in pairs])
        both = zip(self.tokenizer.encode_batch(list(predictions)), right, strict=True)
        count = sum(len(own) != len(gold) for own, gold in both)
        return (message("evaluate.other-lengths", count=count),) if count else ()

    def class_report(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> ClassReport:
        """Return results by type of span, or by tag if the tags mark none."""
        rows = zip(predictions, references, strict=True)
        both = [(text.split(), [gold.split() for gold in several]) for text, several in rows]
        # each tag is compared with the one at its place in the right reference, or the first
        chosen = [(tags, tags if tags in several else several[0]) for tags, several in both]
        pairs = [pair for tags, gold in chosen for pair in zip(tags, gold, strict=False)]
        found = confusion([tag for tag, _ in pairs], [[gold] for _, gold in pairs])
        known = self.tokenizer.tokens(range(len(SYMBOLS), self.tokenizer.vocab_size))
        notes = unknown_classes(([gold] for _, gold in pairs), known)
        if self._has_spans:
            return ClassReport("type of span", span_rows(predictions, references), found, notes)
        return ClassReport("tag", found.rows(), found, notes)
