"""Tagged pairs: one output token per input token, such as words and their parts of speech."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, final

from regard.data import (
    TOKENIZER_KINDS,
    EncodedPairs,
    Pair,
    PairReader,
    Tokenizer,
    require_text,
    source_ids,
)
from regard.data.dev_set import DevSet, overlapping_sources
from regard.data.error_hints import SETTING_HINTS, BadLine, BadLines
from regard.data.tokenizers import target_ids
from regard.errors import ArgumentError, DataError
from regard.evaluation import ClassReport, confusion
from regard.evaluation.classification import unknown_classes
from regard.evaluation.spans import are_span_tags, span_rows
from regard.kinds.data_kind import DataKind, DataPlace, Encoders, Say, Settings
from regard.kinds.text_pairs import (
    build_text_model,
    check_pair_settings,
    check_text_settings,
    learn_pair_tokenizers,
    read_pair_files,
)
from regard.kinds.text_source import TextSource
from regard.kinds.tokenizer_training import learn_tokenizer
from regard.messages import message
from regard.models import LABEL_PRESETS, TAG_PRESETS, SequenceModel
from regard.symbols import SYMBOLS

#: pairs that are tokenised at once
CHUNK: Final = 4096


@final
class TaggedPairs(DataKind):
    """Pairs of texts with as many target tokens as source tokens."""

    name = "tagged-pairs"
    encoder_kinds = TOKENIZER_KINDS
    reads_shards = True
    one_output_per_input = True

    def __init__(self, settings: Settings, encoders: Encoders) -> None:
        super().__init__(settings, encoders)
        self.source: Tokenizer
        self.sources = TextSource(self.source)

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the preset writes one token per source token."""
        text = settings.src_tokenizer in ("auto", *TOKENIZER_KINDS)
        return text and settings.preset in TAG_PRESETS

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that the preset decides."""
        return message("train.why.tagger", preset=settings.preset)

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings that are not for text, or change lengths."""
        check_text_settings(settings)
        check_pair_settings(settings)
        if settings.tgt_tokenizer == "label":
            raise ArgumentError(
                "tgt_tokenizer",
                f"cut targets into tags for the preset {settings.preset}, which writes one for "
                "each token that it reads",
                "'label'",
                f"say space, or choose {', '.join(LABEL_PRESETS)} for one label of a whole source",
            )
        if settings.bpe_dropout:
            raise ArgumentError(
                "bpe_dropout",
                f"be 0 for the preset {settings.preset}, which writes one token for each that it "
                "reads",
                f"{settings.bpe_dropout:g}",
                "leave it out, or choose seq2seq or another preset",
            )

    @classmethod
    def read(cls, settings: Settings, place: DataPlace) -> PairReader:
        """Read pairs of texts."""
        return read_pair_files(settings, place, require_text)

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Encoders:
        """Learn a tokeniser for each side, or one for both."""

        def learn_target(targets: list[str]) -> Tokenizer:
            return learn_tokenizer(settings, "target", settings.tgt_tokenizer, targets, say)

        return learn_pair_tokenizers(settings, pairs, say, learn_target)

    def usable(
        self, pairs: Iterable[Pair], *, file: str, skip_bad: bool, say: Say
    ) -> Iterator[Pair]:
        """Yield the pairs whose sides have equally many tokens; another one is a bad line.

        Lengths are known only once the tokenisers are.
        """
        bad, good, rest = BadLines(skip_bad, advice=SETTING_HINTS), 0, iter(pairs)
        while chunk := list(itertools.islice(rest, CHUNK)):
            reads = source_ids(self.source, [p.src for p in chunk], [p.features for p in chunk])
            writes = target_ids(self.target, chunk)
            for pair, read, written in zip(chunk, reads, writes, strict=True):
                # a source ends with eos, for which nothing is written
                if len(read) - 1 != len(written):
                    bad.add(file, pair.line, self._unequal(pair, len(read) - 1, len(written)))
                    continue
                good += 1
                yield pair
        if bad.total and not good:
            first = bad.first[0]
            what = f"all {bad.total:,} pairs are bad ({bad.reasons})"
            raise DataError(file, first.line, f"{what}, this one because {first.reason}", first.fix)
        if bad.total:
            say(message("train.of-file", file=file, text=bad))

    def _unequal(self, pair: Pair, reads: int, writes: int) -> BadLine:
        """Return the error of a pair with another number of targets than of inputs."""
        count = len(pair.features)
        features = f", {count} feature{'s' * (count != 1)} among them" if count else ""
        words_agree = len(pair.src.split()) + count == len(pair.tgt.split())
        first = "add src_tokenizer=space tgt_tokenizer=space" if words_agree else "mend the line"
        return BadLine(
            "other number of tokens",
            f"the preset {self.settings.preset} writes one token for each that it reads, but the "
            f"line has {reads:,} source token{'s' * (reads != 1)} ({self.source.kind}{features}) "
            f"and {writes:,} target token{'s' * (writes != 1)} ({self.target.kind})",
            f"{first}, or choose seq2seq or another preset",
        )

    def build_model(self) -> SequenceModel:
        """Build the preset for both vocabularies."""
        return build_text_model(self.settings, self.source, self.target)

    @property
    def _has_spans(self) -> bool:
        """True if the tags mark spans, as `B-PER` and `I-PER` do."""
        ids = range(len(SYMBOLS), self.target.vocab_size)
        return self.target.kind == "space" and are_span_tags(self.target.tokens(ids))

    def default_metric(self) -> str:
        """Return the F1 of spans if the tags mark some."""
        return "span-f1" if self._has_spans else super().default_metric()

    def metrics(self) -> tuple[str, ...]:
        """Return metrics of tags, and of the spans that they mark."""
        return ("span-f1", "tag-accuracy") if self._has_spans else ("tag-accuracy", "exact")

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
        known = self.target.tokens(range(len(SYMBOLS), self.target.vocab_size))
        notes = unknown_classes(([gold] for _, gold in pairs), known)
        if self._has_spans:
            return ClassReport("type of span", span_rows(predictions, references), found, notes)
        return ClassReport("tag", found.rows(), found, notes)

    def overlap(self, train: EncodedPairs, dev: DevSet) -> int:
        """Return how many dev sources occur in the training data, token by token."""
        return overlapping_sources(train, dev)
