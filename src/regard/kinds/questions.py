"""Questions about stories and passages: answers are written, chosen or pointed at."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from torch import Tensor

from regard.data import (
    TOKENIZER_KINDS,
    BadLines,
    Corpus,
    EncodedPairs,
    Pair,
    PairReader,
    SourceEncoder,
    Story,
    StoryEncoder,
    Tokenizer,
    TokenizerChoice,
    pad,
    pad_frames,
)
from regard.data.dev_set import DevSet, overlapping_sources
from regard.data.error_hints import SETTING_HINTS, BadLine, report_left_out, shorten
from regard.data.pair_reader import SourceTransform
from regard.data.pairs import column_names
from regard.data.sampling import draw_sample
from regard.data.stories import QUESTION_MARK, SENTENCE_MARK, join_source
from regard.data.story_encoder import FINAL_MARKS, MARKS
from regard.data.tokenizer_selection import is_unspaced
from regard.decoding import Hypothesis
from regard.errors import ArgumentError, DataError
from regard.kinds.data_kind import DataKind, DataPlace, Encoders, Say, Settings
from regard.kinds.graph_inputs import GraphInputs, TokenInputs
from regard.kinds.text_pairs import (
    build_text_model,
    check_pair_settings,
    check_text_settings,
    copying_note,
    read_pair_files,
)
from regard.kinds.text_source import (
    CARD_PAIR,
    END,
    check_several,
    name_some,
    sources_on_card,
    text_sources,
)
from regard.kinds.tokenizer_training import (
    TOKENIZER_LINES,
    learn_target_tokenizer,
    learn_tokenizer,
)
from regard.messages import message
from regard.models import (
    COPY_PRESETS,
    SPAN_PRESETS,
    STORY_PRESETS,
    TAG_PRESETS,
    TEXT_PRESETS,
    SequenceModel,
)
from regard.seeing import Text, Token
from regard.seeing.attribution.replacements import (
    Replacements,
    frame_replacements,
    token_replacements,
)
from regard.symbols import EOS, SYMBOLS, UNK

#: most tokens of an answer that is pointed at, the default of the preset
LONGEST: Final = 20
#: settings that make no sense for stories: their default, and what to do instead
OTHERS: Final[dict[str, tuple[Any, str]]] = {
    "features": (None, "write them into the story"),
    "src_vectors": (None, "leave it out"),
    "bpe_dropout": (0.0, "leave it out"),
}


@final
class Questions(DataKind):
    """Stories or passages with questions, and their answers."""

    name = "questions"
    examples = "questions"
    encoder_kinds = (StoryEncoder.kind,)
    shown_maps = ("hops", "cross")
    example_files = ("questions.tsv", "test.tsv")

    def __init__(self, settings: Settings, encoders: Encoders) -> None:
        super().__init__(settings, encoders)
        self.source: StoryEncoder
        self.sources = StorySource(self.source)

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the preset reads pairs, and sources may be text."""
        other = settings.preset in TEXT_PRESETS or settings.preset in TAG_PRESETS
        return settings.src_tokenizer in ("auto", *TOKENIZER_KINDS) and not other

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that the preset reads stories, or that sources are stories and questions."""
        if settings.preset in STORY_PRESETS | SPAN_PRESETS:
            return message("train.why.preset-stories", preset=settings.preset)
        pairs = first()
        return _why_questions(pairs) if settings.features is not True else ""

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings that are not for stories."""
        check_text_settings(settings)
        check_pair_settings(settings)
        for name, (default, fix) in OTHERS.items():
            value = getattr(settings, name)
            if value and value != default:
                raise ArgumentError(name, "be left out where sources are stories", repr(value), fix)

    @classmethod
    def read(cls, settings: Settings, place: DataPlace) -> PairReader:
        """Read stories, questions and answers."""
        points = settings.preset in SPAN_PRESETS
        return read_pair_files(settings, place, require_answer if points else require_story)

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Encoders:
        """Learn a tokeniser of stories and questions, and one of the answers, or one for both."""
        lines = draw_sample(pairs, TOKENIZER_LINES)
        stories = [Story.of(pair.src) for pair in lines]
        texts = list(dict.fromkeys(p for s in stories for p in (*s.sentences, s.question)))
        answers = [pair.tgt for pair in lines]
        asked: str | TokenizerChoice = settings.src_tokenizer
        say(message("train.stories", why=why))
        if settings.preset in STORY_PRESETS and asked == "auto":
            asked = "word"
        if settings.preset in SPAN_PRESETS and asked == "auto" and is_unspaced(texts):
            asked = TokenizerChoice("char", message("train.why.unspaced-spans"))
        if settings.shared_vocab:
            both = learn_tokenizer(
                settings, "source and target", asked, [*texts, *answers], say, MARKS
            )
            return Encoders(StoryEncoder(both), both)
        source = learn_tokenizer(settings, "source", asked, texts, say, MARKS)
        target = learn_target_tokenizer(settings, answers, say, file=file)
        if settings.preset in STORY_PRESETS:
            return Encoders(StoryEncoder.measure(source, [p.src for p in lines]), target)
        return Encoders(StoryEncoder(source), target)

    @classmethod
    def load_encoder(cls, path: Path, content: dict[str, Any]) -> SourceEncoder:
        """Return the encoder of stories."""
        return StoryEncoder.from_json(path, content)

    def build_model(self) -> SequenceModel:
        """Build the preset; one that copies never copies the marks between sentences."""
        more: dict[str, Any] = {}
        if self.settings.preset in SPAN_PRESETS:
            more = {"folded": folded_tokens(self.target)}
        elif self.settings.preset in COPY_PRESETS:
            more = {"src_only": len(MARKS)}
        return build_text_model(self.settings, self.source.tokenizer, self.target, **more)

    @property
    def stored_sizes(self) -> dict[str, Any]:
        """Words of the longest sentence."""
        return {"width": self.source.width} if self.source.width else {}

    def default_metric(self) -> str:
        """Return the share of right answers, or F1 of answers that are pointed at."""
        if self.settings.preset in SPAN_PRESETS:
            return "f1"
        return "accuracy" if self.target.kind == "label" else "exact"

    def usable(
        self, pairs: Iterable[Pair], *, file: str, skip_bad: bool, say: Say
    ) -> Iterable[Pair]:
        """Return the examples, with answers cut into tokens as they are in their passage."""
        if self.settings.preset not in SPAN_PRESETS:
            return pairs
        return self._pointed(pairs, file, BadLines(skip_bad, advice=SETTING_HINTS), say)

    def _pointed(self, pairs: Iterable[Pair], file: str, bad: BadLines, say: Say) -> Iterator[Pair]:
        """Yield examples whose answers are tokens of the passage, perhaps with what is before."""
        most, long, total, longest = int(self.settings.model.get("longest", LONGEST)), 0, 0, 0
        for total, pair in enumerate(pairs, start=1):  # noqa: B007  the number is used at the end
            (row,) = self.source.encode([pair.src])
            found = next((t for t in _widened(pair) if self._stands_in(row, t)), None)
            if found is None:
                bad.add(file, pair.line, _other_tokens(pair))
            elif (size := len(self.target.encode(found))) > most:
                long, longest = long + 1, max(longest, size)
            else:
                yield pair if found == pair.tgt else pair._replace(tgt=found, more=(pair.tgt,))
        note = message("train.long-answers", file=file, count=long, most=most)
        setting, allowed = f"longest={longest}", bad.skip
        report_left_out(file, long, total, note, setting, say, allowed=allowed)
        if bad.total:
            say(message("train.of-file", file=file, text=bad))

    def _stands_in(self, row: list[int], answer: str) -> bool:
        """Return whether the tokens of an answer stand in a row."""
        ids = self.target.encode(answer)
        places = range(len(row) - len(ids))
        return bool(ids) and any(row[i : i + len(ids)] == ids for i in places)

    def metrics(self) -> tuple[str, ...]:
        """Return exact match and F1, unless answers are chosen."""
        return super().metrics() if self.target.kind == "label" else ("em", "f1")

    def output_notes(self, predictions: Sequence[str], pairs: Sequence[Pair]) -> tuple[str, ...]:
        """Return how many words were copied, if the preset copies and may do something else."""
        if self.settings.preset not in COPY_PRESETS - SPAN_PRESETS:
            return ()
        return (copying_note(predictions, pairs),)

    def overlap(self, train: EncodedPairs, dev: DevSet) -> int:
        """Return how many dev sources occur in the training data, if they are rows of tokens."""
        return 0 if self.source.width else overlapping_sources(train, dev)

    def card_examples(self, dev: DevSet) -> str:
        """Return the model card's paragraph with dev examples."""
        pairs = zip(dev.sources[:3], dev.references[:3], strict=True)
        lines = [
            f"    {source.replace(QUESTION_MARK, ' ')} -> {references[0]}"
            for source, references in pairs
        ]
        return "Questions of its dev set look like this:\n\n" + "\n".join(lines) + "\n"


def _why_questions(pairs: Sequence[Pair]) -> str:
    """Return that all sources have one tab, as stories with questions do; "" otherwise."""
    texts = [pair.src for pair in pairs if pair.frames is None]
    if len(texts) < len(pairs) or not texts or any(pair.features for pair in pairs):
        return ""
    found = all(text.count(QUESTION_MARK) == 1 for text in texts)
    return message("train.why.story-columns") if found else ""


def require_story(pair: Pair) -> Pair:
    """Return the pair with a checked source; raises BadLine unless it is a story and a question."""
    if pair.frames is not None:
        raise BadLine(
            "not a string",
            f"the source must be a story and a question, but it is {shorten(pair.frames)}",
            "write columns story, question and answer",
        )
    try:
        return pair._replace(src=str(Story.of(pair.src)))
    except DataError as error:
        raise BadLine(error.kind, error.reason, error.fix) from None


def require_answer(pair: Pair) -> Pair:
    """Like `require_story`, and raises BadLine unless the answer stands in the passage."""
    pair = require_story(pair)
    if pair.tgt not in Story.of(pair.src).text:
        raise BadLine(
            "answer not in its passage",
            f"the answer must stand in the passage, but {shorten(pair.tgt)} does not",
            "write it as the passage does, or choose a preset that writes answers, such as pointer",
        )
    return pair


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


def source_text(given: Any) -> str:
    """Return a source in its text form.

    Args:
        given: that form, a tuple (story, question), or a dictionary with these keys. The story may
            be a list of sentences.
    """
    if isinstance(given, str):
        return given
    parts: tuple[Any, Any] | None = None
    if isinstance(given, Mapping) and {"story", "question"} <= given.keys():
        parts = given["story"], given["question"]
    elif isinstance(given, list | tuple) and len(given) == 2:
        parts = given[0], given[1]
    if parts is None:
        raise ArgumentError(
            "source",
            "be a story and a question",
            shorten(given),
            'give (story, question), or "story<TAB>question"',
        )
    try:
        return join_source(*parts)
    except BadLine as bad:
        raise DataError("source", None, bad.reason, str(bad.fix), kind=bad.kind) from None


@final
class StorySource:
    """Stories with questions: strings with a tab between them, tuples, or dictionaries.

    Args:
        encoder: of stories.
    """

    ends_with_eos = False
    card_name = "source"
    is_file = False
    request_field = "text"
    feature_names: tuple[str, ...] = ()

    def __init__(self, encoder: StoryEncoder) -> None:
        self._encoder = encoder
        self.unit = "sentences" if encoder.width else "source tokens"

    @property
    def frame_size(self) -> int:
        """Numbers per frame: none, since requests hold text."""
        return 0

    def is_one(self, given: Any) -> bool:
        """Return whether this is a text, a tuple (story, question) or a dictionary."""
        return isinstance(given, str | Mapping | tuple)

    def check_several(self, given: Any) -> None:
        """Raise ArgumentError unless given an iterable of sources."""
        check_several(given)

    def check(self, source: Any) -> None:
        """Raise DataError unless it is a story and a question that the model can read."""
        self._encoder.check(source_text(source))

    def check_line(self, line: Any) -> None:
        """Like `check`."""
        self.check(line)

    def rows(self, sources: Sequence[Any]) -> list[Any]:
        """Return ids, or tables of ids."""
        return self._encoder.encode([source_text(source) for source in sources])

    def receive(self, content: bytes) -> Any:
        """Raise ArgumentError: no file is a source."""
        raise ArgumentError("file", "be left out for this model", "given", "send text")

    def batch(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Pad rows."""
        return pad_frames(rows) if self._encoder.width else pad(rows)

    def positions(self, lengths: Any) -> Any:
        """Return the lengths: a sentence or a token is a position."""
        return lengths

    def length(self, row: Any) -> int:
        """Return the number of sentences, or of tokens without `eos`."""
        return len(row) - 1

    def labels(self, row: Any) -> list[str]:
        """Return the sentences and the question as the model reads them, or the tokens."""
        if not self._encoder.width:
            return self._encoder.tokenizer.tokens(row)
        return [" ".join(self._words(sentence)) for sentence in row]

    def _words(self, sentence: np.ndarray) -> list[str]:
        ids = [int(number) for number in sentence if number]
        return self._encoder.tokenizer.tokens(ids)

    def text(self, source: Any, row: Any) -> Text:
        """Return the text with its sentences, the question last, or with its tokens."""
        story = Story.of(source_text(source))
        shown = f"{story.text.replace(SENTENCE_MARK, ' ')} {story.question}"
        if not self._encoder.width:
            return Text(shown, (*self._tokens(row)[:-1], END))
        parts = [*story.sentences, story.question]
        tokens, start = [], 0
        for number, part in enumerate(parts):
            at = shown.find(part, start)
            span = (at, at + len(part)) if at >= 0 else None
            start = at + len(part) if at >= 0 else start
            tokens.append(Token(part, span, number, special=number == len(parts) - 1))
        return Text(shown, tuple(tokens))

    def _tokens(self, row: Sequence[int]) -> list[Token]:
        marks = self._encoder.marks
        return [
            Token(label, word=i, special=row[i] in marks)
            for i, label in enumerate(self._encoder.tokenizer.tokens(row))
        ]

    def corpus_text(self, corpus: Corpus, row: int, text: str) -> Text:
        """Return the source of an encoded example."""
        encoded = corpus.frames(row) if self._encoder.width else corpus.src(row).tolist()
        return self.text(text, encoded)

    def notes(self, text: Text) -> tuple[str, ...]:
        """Return a sentence about unknown words, if there are any."""
        unknown = tuple(dict.fromkeys(self._unknown(text.text)))
        if not unknown:
            return ()
        number = "word" if len(unknown) == 1 else "words"
        names = name_some(unknown)
        return (message(f"unknown.{number}", count=len(unknown), names=names),)

    def unknown(self, source: Any, row: Any) -> tuple[str, ...]:
        """Return the words that became `unk`."""
        ids = np.asarray(row)
        return self._unknown(source_text(source)) if bool((ids == UNK).any()) else ()

    def _unknown(self, text: str) -> tuple[str, ...]:
        tokenizer, plain = self._encoder.tokenizer, text.replace(SENTENCE_MARK, " ")
        ids, spans = tokenizer.encode(plain), tokenizer.spans(plain)
        found = (plain[a:b] for i, (a, b) in zip(ids, spans, strict=True) if i == UNK)
        # sentences of a table are read without their full stops
        return tuple(word for word in found if word.strip(FINAL_MARKS))

    def replacements(self, row: Any) -> Replacements:
        """Return other sentences of the story, or other tokens of the vocabulary."""
        if self._encoder.width:
            others, put, _ = frame_replacements(row, 1)
            last = len(row) - 1  # the question
            able = [[i for i in some if i != last] or [n] for n, some in enumerate(others[:-1])]
            note = (
                "Inputs are sentences: one is not known where another of the same story stands in "
                "its place; the question stays."
            )
            return Replacements([*able, [last]], put, (note,))
        tokens = range(len(SYMBOLS), self._encoder.marks[0])
        fixed = (EOS, *self._encoder.marks)
        return token_replacements(row, [[i] if i in fixed else tokens for i in row])

    def replaced(self, tgt: Tokenizer, found: Hypothesis, source: Any, row: Any) -> list[str]:
        """Raise ArgumentError: unknown words of answers are not replaced."""
        raise ArgumentError(
            "replace_unk",
            "be left out where sources are stories",
            True,
            "choose the preset pointer, which copies words",
        )

    def size(self, pair: Pair) -> int:
        """Return the number of sentences, or of tokens."""
        (row,) = self._encoder.encode([pair.src])
        return self.length(row)

    def transform(self, place: Any) -> SourceTransform:
        """Return a check that sources are stories that the model can read."""

        def check(pair: Pair) -> Pair:
            pair = require_story(pair)
            try:
                self._encoder.check(pair.src)
            except DataError as error:
                raise BadLine(error.kind, error.reason, error.fix) from None
            return pair

        return check

    def of_pair(self, pair: Pair) -> str:
        """Return the story and the question."""
        return pair.src

    def read(
        self,
        files: Sequence[str],
        settings: Settings,
        *,
        max_chars: int,
        bad: BadLines,
        check: Callable[[Any], None],
    ) -> Iterator[str]:
        """Read a story and a question per line, with a tab between them, or two columns."""
        columns = column_names(settings.columns)
        return text_sources(files, columns, max_chars=max_chars, bad=bad, check=check)

    def describe(self) -> dict[str, Any]:
        """Return the tokeniser's kind, its vocabulary's size and the words of a sentence."""
        tokenizer = self._encoder.tokenizer
        return {
            "tokenizer": self._encoder.kind,
            "vocabulary": tokenizer.vocab_size,
            "words": self._encoder.width,
        }

    def manifest(self) -> dict[str, Any]:
        """Return the tokeniser's kind, its vocabulary's size and the words of a sentence."""
        encoder = self._encoder
        return {
            "kind": encoder.kind,
            "tokenizer": encoder.tokenizer.kind,
            "tokens": encoder.vocab_size,
            "words": encoder.width,
        }

    def reads(self) -> str:
        """Return a phrase about what a model reads."""
        return message("reads.questions")

    def examples(self, card: str, dev: Path) -> list[str]:
        """Return the first short sources that the model card shows."""
        return sources_on_card(card, (CARD_PAIR,))

    def graph_inputs(self) -> GraphInputs:
        """Return token ids; raises ArgumentError for tables of sentences."""
        if self._encoder.width:
            raise ArgumentError(
                "preset",
                "be one that reads tokens for a graph",
                "one that reads tables of sentences",
                "export a run of bahdanau, pointer or another preset",
            )
        return TokenInputs(self._encoder.vocab_size)
