"""Text: tokens, their positions in the text, and the words that they are part of."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from pydantic import Field
from torch import Tensor

from regard.data import (
    TOKENIZER_KINDS,
    Corpus,
    Pair,
    PairReader,
    Tokenizer,
    pad,
    read_texts,
    source_ids,
)
from regard.data.corpus import is_held_out
from regard.data.error_hints import shorten
from regard.data.lookup_codecs import KINDS, Span, words_at
from regard.data.pair_reader import SourceTransform, checked_lines, require_text, source_rows
from regard.data.pairs import draw_sample, parse_features
from regard.data.text_files import display_name
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.models import SPAN_PRESETS, STORY_PRESETS, TEXT_PRESETS
from regard.seeing import Text, Token
from regard.seeing.attribution.input_scorer import Replacements, token_replacements
from regard.symbols import EOS, SYMBOLS, UNK
from regard.tasks.inputs.base import InputDescription, InputFacts, TaskInput
from regard.tasks.inputs.graph_inputs import GraphInputs, TokenInputs
from regard.tasks.settings import (
    FRAMES_ONLY,
    DataPlace,
    Say,
    Settings,
    SourceFiles,
    TaskOptions,
    refuse_settings,
)
from regard.tasks.tokenizer_training import TOKENIZER_LINES, learn_tokenizer, shared_tokenizer_kind

END: Final = Token(SYMBOLS[EOS], special=True)
SUBWORDS: Final = ("bpe", "unigram")
#: unknown inputs that a note names
NAMED: Final = 5
#: how a model card shows examples: pairs of the dev set, or else a command
CARD_PAIR: Final = re.compile(r"^ {4}(\S.*?) -> .+$", re.MULTILINE)
CARD_COMMAND: Final = re.compile(r"^regard show \S+ (\S+)$", re.MULTILINE)
#: the most characters of an example
EXAMPLE_CHARS: Final = 200
#: tokenisers whose kind is named in what a model reads
UNITS: Final = ("char", "space", "word")
#: the most examples that are taken from a model card
EXAMPLES: Final = 5
#: settings of a classifier that nobody has named, by output, from trials on SST
STARTERS: Final[dict[str, dict[str, Any]]] = {
    "label": {"dropout": 0.4, "word_dropout": 0.1, "ema": 0.998, "lr": 2e-3, "ngrams": 2},
    "number": {"dropout": 0.2, "word_dropout": 0.1, "ema": 0.998, "ngrams": 2},
}


class Source(NamedTuple):
    """A source with its features beside it, so that a tab in its text is part of the text.

    Attributes:
        text: what is read.
        features: symbols that join it.
    """

    text: str
    features: tuple[str, ...] = ()

    @staticmethod
    def of(tokenizer: Tokenizer, given: "str | Source") -> "Source":
        """Return a source; a string has features after a tab where the tokeniser knows some."""
        if isinstance(given, Source):
            return given
        return Source(*split_features(given)) if tokenizer.features else Source(given)


def text_given(tokenizer: Tokenizer, given: str | Source, ids: Sequence[int]) -> Text:
    """Return a text with its tokens, without `eos`; features follow after a tab."""
    plain, features = Source.of(tokenizer, given)
    text = with_features(plain, features) if isinstance(given, Source) else given
    spans = tokenizer.spans(plain)
    shown = tokenizer.tokens(ids)
    cut = zip(shown[: len(spans)], spans, tokenizer.word_ids(plain), strict=True)
    tokens = [Token(piece, span, word) for piece, span, word in cut]
    named = zip(shown[len(spans) :], _feature_spans(text, features, len(plain) + 1), strict=True)
    tokens += [Token(name, span, special=True) for name, span in named]
    return Text(text, (*tokens, Token(tokenizer.tokens([tokenizer.end])[0], special=True)))


def with_features(text: str, features: Sequence[str]) -> str:
    """Return a source and its features in one string, separated by a tab."""
    return f"{text}\t{';'.join(features)}" if features else text


def split_features(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a text from its features, which a tab separates."""
    plain, _, features = text.partition("\t")
    return plain, parse_features(features)


def _feature_spans(text: str, features: Iterable[str], start: int) -> list[Span]:
    """Return the spans of features that follow a text, from `start` on."""
    spans, end = [], start
    for name in features:
        at = text.index(name, end)
        end = at + len(name)
        spans.append((at, end))
    return spans


def unknown_in(source: Text) -> tuple[str, ...]:
    """Return the parts of a source that became unk, in order."""
    spans = (token.span for token in source.tokens if token.text == SYMBOLS[UNK])
    return tuple(source.text[slice(*span)] for span in spans if span is not None)


def unknown_note(tokenizer: Tokenizer, source: Text) -> tuple[str, ...]:
    """Return a sentence that names unknown inputs, if there are any.

    If most of the source is unknown, it asks whether the model was trained on another case.
    """
    unknown, total = unknown_in(source), len(source.tokens) - 1
    if not unknown:
        return ()
    number = "one" if len(unknown) == 1 else "several"
    names = name_some(unknown)
    said = message(f"unknown.{number}", count=len(unknown), total=total, names=names)
    if 2 * len(unknown) <= total:
        return (said,)
    plain = Source.of(tokenizer, source.text).text
    turned = tokenizer.encode(plain.swapcase()).count(UNK)
    how = "case" if turned < len(unknown) else "script"
    return (message(f"unknown.{how}", said=said),)


def name_some(unknown: Iterable[str]) -> str:
    """Return the first few distinct names, quoted."""
    names = [repr(name) for name in dict.fromkeys(unknown)]
    more = [message("page.more", count=len(names) - NAMED)] if len(names) > NAMED else []
    return message("check.comma").join([*names[:NAMED], *more])


def text_written(
    tokenizer: Tokenizer, ids: Sequence[int], *, unk: Sequence[str] = (), finished: bool = True
) -> Text:
    """Return the text of these tokens, with `eos` after them if it is finished.

    The span of a token is what the text grows by: models split words as their tokeniser never
    would. An unknown word that adds nothing to the text has no span.

    Args:
        tokenizer: of the target.
        ids: without `eos`.
        unk: text for each unknown token.
        finished: whether the model ended it.
    """
    grown = [tokenizer.decode(ids[:end], unk=unk) for end in range(len(ids) + 1)]
    text = grown[-1]
    spans = [(len(before), len(after)) for before, after in pairwise(grown)]
    if tokenizer.kind == "labels":
        spans = tokenizer.spans(text)
    elif tokenizer.kind != "char":
        # without the space that separates a piece from what is before it
        starts = (end - len(text[start:end].lstrip()) for start, end in spans)
        spans = [(start, end) for start, (_, end) in zip(starts, spans, strict=True)]
    words = words_at(text, (start for start, _ in spans))
    tokens = [
        Token(piece) if start == end and number == UNK else Token(piece, (start, end), word)
        for piece, number, (start, end), word in zip(
            tokenizer.tokens(ids), ids, spans, words, strict=True
        )
    ]
    return Text(text, (*tokens, END) if finished else tuple(tokens))


class LineInput(TaskInput):
    """Sources that are lines of a file, and that a model card shows."""

    #: how the model card shows a source
    card_patterns: ClassVar[Sequence[re.Pattern[str]]] = (CARD_PAIR, CARD_COMMAND)

    def read(self, given: SourceFiles) -> Iterator[str]:
        """Read one source per line of one file, or of some of its columns."""
        return text_sources(given, features=bool(self.feature_names))

    def examples(self, card: str, dev: Path) -> list[Any]:
        """Return the first short sources that the model card shows, each once."""
        found = (match[1] for pattern in self.card_patterns for match in pattern.finditer(card))
        return list(dict.fromkeys(text for text in found if len(text) <= EXAMPLE_CHARS))[:EXAMPLES]


class TextInput(LineInput):
    """Texts; features follow a text after a tab, or stand beside it in a `Source`."""

    name = "text"
    facts = InputFacts(
        "source tokens",
        "one text",
        "text",
        card_name="source tokens",
        request_field="text",
        ends=1,
        ends_with_eos=True,
        reads_shards=True,
    )
    encoder_type: ClassVar[Any] = Tokenizer

    def __init__(self, encoder: Tokenizer, settings: Settings) -> None:
        super().__init__(encoder, settings)
        self.tokenizer = encoder
        self.feature_names = encoder.features

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether sources may be text, and the preset reads texts of any sort."""
        other = settings.preset in {*TEXT_PRESETS, *STORY_PRESETS, *SPAN_PRESETS}
        return settings.src_tokenizer in ("auto", *TOKENIZER_KINDS) and not other

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that nothing else was recognised: sources are text unless they look otherwise."""
        return message("train.why.text")

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for a setting that is only for frames."""
        rule = "be left out where sources are text"
        refuse_settings(
            settings, FRAMES_ONLY, rule, "add src_tokenizer=vectors if they are vectors"
        )

    @classmethod
    def reader(cls, settings: Settings, place: DataPlace) -> SourceTransform:
        """Return a check that sources are text."""
        return require_text

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Tokenizer:
        """Learn the tokeniser; with one vocabulary for both sides, of the targets as well."""
        lines = draw_sample(pairs, TOKENIZER_LINES)
        features = sorted({name for pair in lines for name in pair.features})
        if settings.shared_vocab:
            # alternating, so that the sample by which a kind is chosen has both sides
            both = [text for pair in lines for text in (pair.src, pair.tgt)]
            kind = shared_tokenizer_kind(settings)
            return learn_tokenizer(settings, "source and target", kind, both, say, features)
        texts = [pair.src for pair in lines]
        return learn_tokenizer(settings, "source", settings.src_tokenizer, texts, say, features)

    def starter(self, output: str) -> Mapping[str, Any]:
        """Return what helps small networks, and lets the n-grams of the baseline answer as well."""
        found = STARTERS.get(output, {})
        # the votes of n-grams know no weights of labels
        weighted = self.settings.task_options.get("class_weights") is not None
        return {**found, "ngrams": 0} if weighted else found

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, features among them."""
        return self.tokenizer.vocab_size

    def is_one(self, given: Any) -> bool:
        """Return whether this is a string or a `Source`."""
        return isinstance(given, str | Source)

    def parse(self, source: Any, *, line: bool = False) -> Any:
        """Raise unless it is a `Source`, or a string with at most one tab before its features.

        Without features, a tab in a string is part of the text, but not in a line of a file.
        """
        if isinstance(source, Source):
            return source
        refuse_file(source)
        if not isinstance(source, str):
            raise ArgumentError("text", "be a string", shorten(source), "convert it to one")
        if self.feature_names and source.count("\t") > 1:
            raise _too_many_tabs("features after one tab", source)
        if line and "\t" in source and not self.feature_names:
            raise _too_many_tabs("no tab, since the run has no features", source)
        return source

    def rows(self, sources: Sequence[str | Source]) -> list[list[int]]:
        """Return ids of tokens, features and `eos`."""
        read = [Source.of(self.tokenizer, source) for source in sources]
        texts, features = [source.text for source in read], [source.features for source in read]
        return source_ids(self.tokenizer, texts, features)

    def batch(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Pad ids."""
        return pad(rows)

    def labels(self, row: list[int]) -> list[str]:
        """Return the tokens."""
        return self.tokenizer.tokens(row)

    def text(self, source: str | Source, row: list[int]) -> Text:
        """Return the text, its tokens and their spans."""
        return text_given(self.tokenizer, source, row[:-1])

    def corpus_text(self, corpus: Corpus, row: int, text: str) -> Text:
        """Return the text with the tokens that the corpus holds."""
        return text_of_ids(self.tokenizer, corpus.src(row).tolist(), text)

    def notes(self, text: Text) -> tuple[str, ...]:
        """Return a sentence about unknown tokens, if there are any, and about n-grams that vote."""
        order = self.settings.model.get("ngrams", 0)
        voting = (message("trace.ngrams", order=order),) if order else ()
        return (*unknown_note(self.tokenizer, text), *voting)

    def unknown(self, source: str | Source, row: list[int]) -> tuple[str, ...]:
        """Return the parts of the text that became `unk`."""
        return unknown_in(self.text(source, row)) if UNK in row else ()

    def replacements(self, row: list[int]) -> Replacements:
        """Return what may stand at each place: features for a feature, tokens of text for text.

        Every source ends with `eos`, so that nothing else could stand there.
        """
        first_feature = self.vocab_size - len(self.feature_names)

        def others(token: int) -> Sequence[int]:
            if token == EOS:
                return [EOS]
            if token >= first_feature:
                return range(first_feature, self.vocab_size)
            return range(len(SYMBOLS), first_feature)

        return token_replacements(row, [others(token) for token in row])

    def of_pair(self, pair: Pair) -> Any:
        """Return the text with its features beside it."""
        return Source(pair.src, pair.features)

    def describe(self) -> InputDescription:
        """Return the tokeniser's kind and sizes, in a phrase such as "text, letter by letter"."""
        kind = self.tokenizer.kind
        said = message(f"reads.{kind if kind in UNITS else 'text'}")
        if self.feature_names:
            names = ";".join(self.feature_names[:2])
            said = message("reads.features", reads=said, names=names)
        manifest = {"kind": kind, "tokens": self.vocab_size}
        return InputDescription(said, describe_tokenizer(self.tokenizer), manifest)

    def graph_inputs(self) -> GraphInputs:
        """Return token ids."""
        return TokenInputs(self.vocab_size)


def refuse_file(source: Any) -> None:
    """Raise ArgumentError for the content of a file, which is no text."""
    if isinstance(source, bytes):
        raise ArgumentError("file", "be left out for this model", "given", "send text")


def text_sources(given: SourceFiles, *, features: bool = False) -> Iterator[str]:
    """Return one text per line of one file, or those of a column of CSV, JSON or Parquet."""
    file, *others = given.files
    if others:
        raise ArgumentError("FILE", "be one for a model that reads text", file, "join the files")
    rows = source_rows(file, given.columns, given.bad.advice, features=features)
    return checked_lines(display_name(file), rows, given.max_chars, given.bad, given.check)


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a tokeniser's properties, as a server's `/api/info` states them."""
    return {
        "tokenizer": tokenizer.kind,
        "vocabulary": tokenizer.vocab_size,
        "features": len(tokenizer.features),
    }


def text_of_ids(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> Text:
    """Return a text with the labels of its tokens, each a word of its own."""
    labels = tokenizer.tokens(ids)
    tokens = [Token(label, word=i, special=ids[i] == EOS) for i, label in enumerate(labels)]
    return Text(text, tuple(tokens))


def _too_many_tabs(have: str, source: str) -> DataError:
    reason = f"a source must have {have}, but this one has {source.count(chr(9))}"
    fix = "leave the targets out, for example with `cut -f1`"
    return DataError("text", None, reason, fix, kind="with a tab too many")


#: lines of running text that are held out together
BLOCK_LINES: Final = 20
#: how a model card shows a text
CARD_TEXT: Final = re.compile(r"^Texts of its dev set look like this:\n\n {4}(.+)$", re.MULTILINE)


class RunningOptions(TaskOptions):
    """The setting of a language model whose lines are those of longer texts."""

    running_text: bool = Field(
        False, description="whether lines follow on one another, in windows of max_tgt_len tokens"
    )


class NoInput(TextInput):
    """Texts that are continued: the tokeniser is that of what is written."""

    name = "nothing"
    options_type = RunningOptions
    facts = TextInput.facts._replace(
        has_sources=False,
        scales_batches=False,
        examples="texts",
        inputs="texts",
        maps=("decoder-self", "decoder-history"),
        files=("input.txt", "test.txt"),
        metrics=dict.fromkeys(KINDS, "perplexity"),
        only=("tokens", "a language model has no source, and continues texts"),
    )
    card_patterns = (CARD_TEXT,)

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the preset is a language model."""
        return settings.preset in TEXT_PRESETS

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that the preset decides."""
        return message("train.why.language-model", preset=settings.preset)

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings of pairs or frames."""
        super().check_settings(settings)
        if settings.src_case != "keep":
            rule = "be keep where one tokeniser cuts what is read and what is written"
            value = repr(settings.src_case)
            raise ArgumentError("src_case", rule, value, "bring the data to one case instead")
        if settings.metric not in ("auto", "perplexity", "loss"):
            raise _only_for_pairs(settings, "metric", "perplexity or loss for texts")
        if settings.src_tokenizer != "auto":
            rule = "auto for texts, which tgt_tokenizer cuts"
            raise _only_for_pairs(settings, "src_tokenizer", rule)
        for name in ("tgt", "dev_tgt", "columns", "features", "shared_vocab"):
            if getattr(settings, name):
                raise _only_for_pairs(settings, name, "left out for texts")

    @classmethod
    def read_examples(
        cls, settings: Settings, place: DataPlace, check: Callable[[Pair], Pair]
    ) -> PairReader:
        """Read one text per line; in Python, a text may stand alone in a tuple."""
        texts = place.source
        if not isinstance(texts, str):  # reading complains of what is no text
            texts = (one[0] if isinstance(one, tuple) and len(one) == 1 else one for one in texts)
        return read_texts(
            texts, skip_bad=settings.skip_bad, max_chars=settings.max_chars, advice=place.hints
        )

    @classmethod
    def is_dev(cls, settings: Settings, pair: Pair, share: float) -> bool:
        """Return whether a text is held out, if there is no dev file; running text is in blocks."""
        running = cls.options_type.of(settings).running_text
        key = str(pair.line // BLOCK_LINES) if running else pair.tgt
        return is_held_out(key, share=share)

    @property
    def context(self) -> int:
        """Most tokens of a window of running text."""
        return self.settings.max_tgt_len if self.options.running_text else 0

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Tokenizer:
        """Learn one tokeniser, for what is given and for what is written."""
        lines = [pair.tgt for pair in draw_sample(pairs, TOKENIZER_LINES)]
        return learn_tokenizer(settings, "text", settings.tgt_tokenizer, lines, say)

    def describe(self) -> InputDescription:
        """Return the properties of the tokeniser, whose texts are continued."""
        found = super().describe()
        return found._replace(reads=message("reads.continued", reads=found.reads))


def _only_for_pairs(settings: Settings, name: str, rule: str) -> ArgumentError:
    value, reads = repr(getattr(settings, name)), f"the preset {settings.preset} reads texts"
    return ArgumentError(name, f"be {rule}", value, reads)
