"""Plain texts, which language models learn from: targets without a source."""

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, final

import numpy as np

from regard.data import (
    TOKENIZER_KINDS,
    EncodedPairs,
    Pair,
    PairReader,
    Tokenizer,
    read_texts,
)
from regard.data.dev_set import DevSet
from regard.data.sampling import draw_sample
from regard.decoding import DecodingOptions
from regard.errors import ArgumentError
from regard.kinds.data_kind import DataKind, DataPlace, Encoders, Say, Settings
from regard.kinds.text_pairs import build_text_model, check_text_settings
from regard.kinds.text_source import Source, TextSource, unknown_note
from regard.kinds.tokenizer_training import TOKENIZER_LINES, learn_tokenizer
from regard.messages import message
from regard.models import TEXT_PRESETS, SequenceModel
from regard.models.protocol import AnyModel, require_sequence_model
from regard.seeing import Text
from regard.symbols import UNK

#: how a model card shows a text
CARD_TEXT: Final = re.compile(r"^Texts of its dev set look like this:\n\n {4}(.+)$", re.MULTILINE)


@final
class PlainTexts(DataKind):
    """Texts, one per line; a source given to a model is how its output begins."""

    name = "plain-texts"
    examples = "texts"
    inputs = "texts"
    encoder_kinds = TOKENIZER_KINDS
    reads_shards = True
    has_sources = False
    vector_sides: ClassVar[Mapping[str, str]] = {"tgt_vectors": "text"}
    scales_batches = False
    shown_maps = ("decoder-self", "decoder-history")
    example_files = ("input.txt", "test.txt")

    def __init__(self, settings: Settings, encoders: Encoders) -> None:
        super().__init__(settings, encoders)
        self.source: Tokenizer
        self.sources = TextSource(self.source, continued=True, card_patterns=(CARD_TEXT,))

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
        check_text_settings(settings)
        if settings.src_case != "keep":
            raise ArgumentError(
                "src_case",
                "be keep where one tokeniser cuts what is read and what is written",
                repr(settings.src_case),
                "bring the data to one case instead",
            )
        if settings.metric not in ("auto", "perplexity", "loss"):
            raise _only_for_pairs(settings, "metric", "perplexity or loss for texts")
        if settings.src_tokenizer != "auto":
            rule = "auto for texts, which tgt_tokenizer cuts"
            raise _only_for_pairs(settings, "src_tokenizer", rule)
        for name in ("tgt", "dev_tgt", "columns", "features", "shared_vocab"):
            if getattr(settings, name):
                raise _only_for_pairs(settings, name, "left out for texts")

    @classmethod
    def read(cls, settings: Settings, place: DataPlace) -> PairReader:
        """Read one text per line; in Python, a text may stand alone in a tuple."""
        source, skip_bad = place.source, settings.skip_bad
        texts = source if isinstance(source, str) else map(_only_item, source)
        return read_texts(
            texts, skip_bad=skip_bad, max_chars=settings.max_chars, advice=place.hints
        )

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Encoders:
        """Learn one tokeniser, for what is given and for what is written."""
        drawn = draw_sample(pairs, TOKENIZER_LINES)
        lines = [line for pair in drawn for line in pair.tgt.split("\n")]
        both = learn_tokenizer(settings, "text", settings.tgt_tokenizer, lines, say)
        return Encoders(both, both)

    @classmethod
    def fingerprint_options(cls, settings: Settings) -> dict[str, Any]:
        """Return the lines that are joined to one text."""
        return {"join_lines": settings.join_lines}

    @classmethod
    def split_key(cls, pair: Pair) -> str:
        """Return the text."""
        return pair.tgt

    def build_model(self) -> SequenceModel:
        """Build the language model."""
        return build_text_model(self.settings, self.source, self.target)

    def default_metric(self) -> str:
        """Return perplexity, since no output could be compared with a reference."""
        return "perplexity"

    def sort_lengths(self, corpus: EncodedPairs) -> np.ndarray:
        """Return the lengths of the texts."""
        return corpus.tgt_lengths

    def max_positions(self, model: AnyModel) -> int | None:
        """Return the decoder's positions: it writes its source, `bos` in the place of `eos`."""
        return require_sequence_model(model, "a language model").tgt_positions

    def prefixed(self, options: DecodingOptions, rows: Sequence[Any]) -> DecodingOptions:
        """Return options by which each output begins with its source."""
        return replace(options, prefix=[row[:-1] for row in rows])

    def unknown_words(self, source: Any) -> list[str]:
        """Return the unknown words of the source, which the output repeats."""
        text = Source.of(self.source, source).text
        ids, spans = self.source.encode(text), self.source.spans(text)
        return [text[slice(*span)] for i, span in zip(ids, spans, strict=True) if i == UNK]

    def trace_notes(self, source: Text, target: Text) -> tuple[str, ...]:
        """Return a sentence about unknown words of the text that is read.

        That is the source, which outputs repeat, or a target that the model is made to write.
        """
        return unknown_note(self.target, source if source.text else target)

    def encoder_rows(self) -> dict[str, str]:
        """Return one row: a text has one side."""
        return {"tokens": self.target.summary} | self._vector_rows("vectors")

    def card_examples(self, dev: DevSet) -> str:
        """Return the paragraph with dev texts."""
        texts = "\n".join(several[0] for several in dev.references[:3])
        return "Texts of its dev set look like this:\n\n" + textwrap.indent(texts, "    ") + "\n"


def _only_item(parts: Any) -> Any:
    """Return the text of a tuple of one; reading complains of anything else."""
    return parts[0] if isinstance(parts, tuple) and len(parts) == 1 else parts


def _only_for_pairs(settings: Settings, name: str, rule: str) -> ArgumentError:
    value, reads = repr(getattr(settings, name)), f"the preset {settings.preset} reads texts"
    return ArgumentError(name, f"be {rule}", value, reads)
