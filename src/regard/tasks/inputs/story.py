"""Stories and passages with questions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from torch import Tensor

from regard.data import (
    TOKENIZER_KINDS,
    Corpus,
    Pair,
    SourceEncoder,
    Story,
    StoryEncoder,
    pad,
    pad_frames,
)
from regard.data.error_hints import BadLine, shorten
from regard.data.pair_reader import SourceTransform
from regard.data.pairs import draw_sample
from regard.data.stories import QUESTION_MARK, SENTENCE_MARK, join_source
from regard.data.story_encoder import FINAL_MARKS, MARKS
from regard.data.text_codec import StoryCodec
from regard.data.tokenizers import TokenizerChoice, is_unspaced
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.models import SPAN_PRESETS, STORY_PRESETS, TEXT_PRESETS
from regard.seeing import Text, Token
from regard.seeing.attribution.input_scorer import (
    Replacements,
    frame_replacements,
    token_replacements,
)
from regard.symbols import EOS, SYMBOLS, UNK
from regard.tasks.inputs.base import InputDescription, InputFacts
from regard.tasks.inputs.graph_inputs import GraphInputs, TokenInputs
from regard.tasks.inputs.text import CARD_PAIR, END, LineInput, TextInput, name_some, refuse_file
from regard.tasks.settings import DataPlace, Say, Settings, refuse_settings
from regard.tasks.tokenizer_training import TOKENIZER_LINES, learn_tokenizer


class StoryInput(LineInput):
    """Stories with questions: strings with a tab between them, tuples, or dictionaries."""

    name = "story"
    facts = InputFacts(
        "source tokens",
        "one story",
        "stories",
        request_field="text",
        ends=1,
        examples="questions",
        maps=("hops", "cross"),
        files=("questions.tsv", "test.tsv"),
        codec=StoryCodec,
        metrics={kind: "exact" for kind in TOKENIZER_KINDS if kind != "label"},
    )
    encoder_type: ClassVar[Any] = StoryEncoder
    card_patterns = (CARD_PAIR,)

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the preset reads pairs, and sources may be text."""
        asked = settings.src_tokenizer in ("auto", *TOKENIZER_KINDS)
        return asked and settings.preset not in TEXT_PRESETS

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that the preset reads stories, or that sources are stories and questions."""
        if settings.preset in STORY_PRESETS | SPAN_PRESETS:
            return message("train.why.preset-stories", preset=settings.preset)
        pairs = first()
        return why_questions(pairs) if settings.features is not True else ""

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings that are not for stories."""
        TextInput.check_settings(settings)
        rule = "be left out where sources are stories"
        refuse_settings(settings, ("features",), rule, "write them into the story")

    @classmethod
    def reader(cls, settings: Settings, place: DataPlace) -> SourceTransform:
        """Return a check that sources are stories, which a known model can read."""
        encoder = place.encoder
        if not isinstance(encoder, StoryEncoder):
            return require_story

        def check(pair: Pair) -> Pair:
            pair = require_story(pair)
            try:
                encoder.check(pair.src)
            except DataError as error:
                raise BadLine(error.kind, error.reason, error.fix) from None
            return pair

        return check

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> SourceEncoder:
        """Learn a tokeniser of stories and questions; with one vocabulary, of answers as well."""
        lines = draw_sample(pairs, TOKENIZER_LINES)
        stories = [Story.of(pair.src) for pair in lines]
        texts = list(dict.fromkeys(p for s in stories for p in (*s.sentences, s.question)))
        asked: str | TokenizerChoice = settings.src_tokenizer
        say(message("train.stories", why=why))
        if asked == "auto" and settings.preset in {*STORY_PRESETS, *SPAN_PRESETS}:
            whole = settings.preset in SPAN_PRESETS
            if is_unspaced(texts):
                reason = message(f"train.why.unspaced-{'spans' if whole else 'short'}")
                asked = TokenizerChoice("char", reason)
            elif not whole:
                asked = "word"
        side, answers = "source", []
        if settings.shared_vocab:
            side, answers = "source and target", [pair.tgt for pair in lines]
        tokenizer = learn_tokenizer(settings, side, asked, [*texts, *answers], say, MARKS)
        if settings.preset in STORY_PRESETS:
            return StoryEncoder.measure(tokenizer, [pair.src for pair in lines])
        return StoryEncoder(tokenizer)

    @property
    def story_encoder(self) -> StoryEncoder:
        """Cuts stories into tokens, or sentences into rows of words."""
        return cast(StoryEncoder, self.encoder)

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, marks among them."""
        size: int = self.encoder.tokenizer.vocab_size
        return size

    def is_one(self, given: Any) -> bool:
        """Return whether this is a text, a tuple (story, question) or a dictionary."""
        return isinstance(given, str | Mapping | tuple)

    def parse(self, source: Any, *, line: bool = False) -> Any:
        """Raise DataError unless it is a story and a question that the model can read."""
        refuse_file(source)
        self.encoder.check(source_text(source))
        return source

    def rows(self, sources: Sequence[Any]) -> list[Any]:
        """Return ids, or tables of ids."""
        return self.story_encoder.encode([source_text(source) for source in sources])

    def batch(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Pad rows."""
        return pad_frames(rows) if self.encoder.width else pad(rows)

    def labels(self, row: Any) -> list[str]:
        """Return the sentences and the question as the model reads them, or the tokens."""
        if not self.encoder.width:
            return self.story_encoder.tokenizer.tokens(row)
        return [" ".join(self._words(sentence)) for sentence in row]

    def _words(self, sentence: np.ndarray) -> list[str]:
        ids = [int(number) for number in sentence if number]
        return self.story_encoder.tokenizer.tokens(ids)

    def text(self, source: Any, row: Any) -> Text:
        """Return the source with its sentences, the question last, or the text with its tokens."""
        story = Story.of(source_text(source))
        if not self.encoder.width:
            shown = f"{story.text.replace(SENTENCE_MARK, ' ')} {story.question}"
            return Text(shown, (*self._tokens(row)[:-1], END))
        shown = str(story)  # with its marks, so that what replaces a sentence is one again
        parts = [*story.sentences, story.question]
        tokens, start = [], 0
        for number, part in enumerate(parts):
            at = shown.find(part, start)
            span = (at, at + len(part)) if at >= 0 else None
            start = at + len(part) if at >= 0 else start
            tokens.append(Token(part, span, number, special=number == len(parts) - 1))
        return Text(shown, tuple(tokens))

    def _tokens(self, row: Sequence[int]) -> list[Token]:
        marks = self.encoder.marks
        return [
            Token(label, word=i, special=row[i] in marks)
            for i, label in enumerate(self.story_encoder.tokenizer.tokens(row))
        ]

    def corpus_text(self, corpus: Corpus, row: int, text: str) -> Text:
        """Return the source of an encoded example."""
        encoded = corpus.frames(row) if self.encoder.width else corpus.src(row).tolist()
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
        tokenizer, plain = self.encoder.tokenizer, text.replace(SENTENCE_MARK, " ")
        ids, spans = tokenizer.encode(plain), tokenizer.spans(plain)
        found = (plain[a:b] for i, (a, b) in zip(ids, spans, strict=True) if i == UNK)
        # sentences of a table are read without their full stops
        return tuple(word for word in found if word.strip(FINAL_MARKS))

    def replacements(self, row: Any) -> Replacements:
        """Return other sentences of the story, or other tokens of the vocabulary."""
        if self.encoder.width:
            others, put, _ = frame_replacements(row, 1)
            last = len(row) - 1  # the question
            able = [[i for i in some if i != last] or [n] for n, some in enumerate(others[:-1])]
            note = (
                "Inputs are sentences: one is not known where another of the same story stands in "
                "its place; the question stays."
            )
            return Replacements([*able, [last]], put, (note,))
        tokens = range(len(SYMBOLS), self.encoder.marks[0])
        fixed = (EOS, *self.encoder.marks)
        return token_replacements(row, [[i] if i in fixed else tokens for i in row])

    def of_pair(self, pair: Pair) -> str:
        """Return the story and the question."""
        return pair.src

    def describe(self) -> InputDescription:
        """Return the tokeniser's kind, its vocabulary's size and the words of a sentence."""
        one, width, kind = self.encoder, self.encoder.width, self.encoder.tokenizer.kind
        return InputDescription(
            message("reads.questions"),
            {"tokenizer": one.kind, "vocabulary": one.tokenizer.vocab_size, "words": width},
            {"kind": one.kind, "tokenizer": kind, "tokens": one.vocab_size, "words": width},
            {"width": width} if width else {},
            "sentences" if width else None,
        )

    def graph_inputs(self) -> GraphInputs:
        """Return token ids; raises ArgumentError for tables of sentences."""
        if self.encoder.width:
            rule = "be one that reads tokens for a graph"
            fix = "export a run of bahdanau, pointer or another preset"
            raise ArgumentError("preset", rule, "one that reads tables of sentences", fix)
        return TokenInputs(self.encoder.vocab_size)


def why_questions(pairs: Sequence[Pair]) -> str:
    """Return that all sources have one tab, as stories with questions do; "" otherwise."""
    texts = [pair.src for pair in pairs if pair.frames is None]
    if len(texts) < len(pairs) or not texts or any(pair.features for pair in pairs):
        return ""
    found = all(text.count(QUESTION_MARK) == 1 for text in texts)
    return message("train.why.story-columns") if found else ""


def require_story(pair: Pair) -> Pair:
    """Return the pair with a checked source; raises BadLine unless it is a story and a question."""
    if pair.frames is not None:
        reason = f"the source must be a story and a question, but it is {shorten(pair.frames)}"
        raise BadLine("not a string", reason, "write columns story, question and answer")
    try:
        return pair._replace(src=str(Story.of(pair.src)))
    except DataError as error:
        raise BadLine(error.kind, error.reason, error.fix) from None


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
        fix = 'give (story, question), or "story<TAB>question"'
        raise ArgumentError("source", "be a story and a question", shorten(given), fix)
    try:
        return join_source(*parts)
    except BadLine as bad:
        raise DataError("source", None, bad.reason, str(bad.fix), kind=bad.kind) from None
